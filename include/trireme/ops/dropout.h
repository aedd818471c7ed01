#pragma once
// Dropout whose decisions are a function of (seed, stream, sample, element) alone: the same on
// every rank, for every micro-batch split, on CPU and GPU, and regenerated in backward instead of
// stored.
//
// The hash, in 32-bit wrapping arithmetic (CPU loop, tensor version and CUDA kernel must agree bit for bit):
//   mix(x):  x ^= x >> 16; x *= 0x21f0aaad; x ^= x >> 15; x *= 0x735a2d97; x ^= x >> 15
//            (two rounds found by C. Wellons' hash-prospector)
//   host:    key = derive_seed(seed, "dropout", stream); t0 = low 32 bits, t1 = high 32 bits
//   sample:  k0 = mix(mix(low32(sample) ^ t0) ^ high32(sample) ^ t1);  k1 = mix(k0 + 0x9e3779b9)
//   element: e = position * width + column inside the sample's [S, width] activation, 64 bits;  w = e >> 1
//            h = mix(mix(low32(w) ^ k0) ^ k1 ^ high32(w) * 0x9e3779b9);  u = e even ? h & 0xffff : h >> 16
//            (high32(w) is 0 in samples of up to 2^33 elements)
//   kept when u >= threshold, threshold = round(p * 65536); kept elements are multiplied by
//   65536 / (65536 - threshold), the exact inverse of the keep probability. A p that would round to 0 and is not 0, or
//   to 1, is an internal error: the configuration refuses it before (trireme/base/dropout_steps.h).
// Both multipliers are below 2^31, so a 32-bit value times one of them fits a signed 64-bit integer.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

struct Dropout {
  double p = 0;  // 0 = off, below 1
  uint64_t seed = 0;
  at::Tensor sample_ids_B;  // int64, on the activation's device; needed when p > 0
  bool active() const { return p > 0; }
};

/// The numbers both implementations start from.
struct DropoutKey {
  uint32_t t0, t1;
  uint32_t threshold;  // of 65536
  double scale;
};
DropoutKey dropout_key(const Dropout& dropout, uint64_t stream);

/// Row `b` of x_BSD belongs to sample_ids_B[b]; x may be any floating type. Returns x * mask *
/// scale (a new tensor). `stream` names the place in the model (layer and target). Not recorded by
/// autograd: callers apply it again in their backward.
at::Tensor apply_dropout(const at::Tensor& x_BSD, const Dropout& dropout, uint64_t stream);

/// sum += apply_dropout(x, …) in one pass where a kernel serves.
void add_dropout_(at::Tensor& sum_BSD, const at::Tensor& x_BSD, const Dropout& dropout, uint64_t stream);

/// The same in at:: operations on any device (what CUDA uses); public for the test that both agree.
at::Tensor apply_dropout_tensor_ops(const at::Tensor& x_BSD, const Dropout& dropout, uint64_t stream);

}  // namespace trireme
