#pragma once
// Dropout whose decisions depend only on (seed, stream, sample, element): they are the same on every rank, for every
// micro-batch split, on CPU and GPU, and backward regenerates them instead of storing them.
//
// The hash, in 32-bit wrapping arithmetic. The CPU loop, the tensor version and the CUDA kernel give the same bits.
//   mix(x):  x ^= x >> 16; x *= 0x21f0aaad; x ^= x >> 15; x *= 0x735a2d97; x ^= x >> 15
//            (two rounds found by C. Wellons' hash-prospector)
//   host:    key = derive_seed(seed, "dropout", stream); t0 = low 32 bits, t1 = high 32 bits
//   sample:  k0 = mix(mix(low32(sample) ^ t0) ^ high32(sample) ^ t1);  k1 = mix(k0 + 0x9e3779b9)
//   element: e = position * width + column inside the sample's [S, width] activation, 64 bits;  w = e >> 1
//            h = mix(mix(low32(w) ^ k0) ^ k1 ^ high32(w) * 0x9e3779b9);  u = e even ? h & 0xffff : h >> 16
//            (high32(w) is 0 in samples of up to 2^33 elements)
//   kept if u >= threshold, threshold = round(p * 65536); kept elements are multiplied by
//   65536 / (65536 - threshold), the exact inverse of the keep probability. A p above 0 that rounds to 0, or a p that
//   rounds to 1, is an internal error; the configuration rejects it earlier (trireme/base/dropout_steps.h).
// Both multipliers are below 2^31, so a 32-bit value times one of them fits a signed 64-bit integer.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

struct Dropout {
  double p = 0;  // probability of dropping, 0 <= p < 1; 0: no dropout
  uint64_t seed = 0;
  at::Tensor sample_ids_B;  // int64, on the activation's device; required if p > 0
  uint64_t stream = 0;      // number of this use in the model (layer and position in it)
  /// The activation is a slice of the rows [B * S, D] of the samples: first_row is its first row, sample_rows is S. 0
  /// sample_rows: it has all rows of the samples.
  int64_t first_row = 0, sample_rows = 0;
  bool active() const { return p > 0; }
  /// Number of samples that the activation has whole; 0: a slice, or no dropout.
  int64_t samples() const { return active() && sample_rows == 0 ? sample_ids_B.numel() : 0; }
  Dropout at(uint64_t place) const { return {p, seed, sample_ids_B, place, first_row, sample_rows}; }
  /// The dropout of rows begin, …, begin + count - 1 of an activation with `tokens` rows.
  Dropout of_rows(int64_t begin, int64_t count, int64_t tokens) const;
  /// Whether each of `tokens` rows is a sample, or nothing is dropped: of_picked_rows() needs it.
  bool row_by_row(int64_t tokens) const { return !active() || samples() == tokens; }
  /// The dropout of the rows with these numbers, int64 [R], in their order.
  Dropout of_picked_rows(const at::Tensor& rows_R) const;
};

/// The inputs of all implementations.
struct DropoutKey {
  uint32_t t0, t1;
  uint32_t threshold;  // of 65536
  double scale;
};
DropoutKey dropout_key(const Dropout& dropout);

/// x * mask * scale, a new tensor. x is of any floating type, [B, S, D] or its rows as [B * S, D]: B equal parts, one
/// for each sample id; or a slice of these rows (Dropout::first_row). Rows that do not divide into the samples, or lie
/// beyond them, are an internal error. Autograd does not record it; callers apply it again in their backward.
at::Tensor apply_dropout(const at::Tensor& x, const Dropout& dropout);

/// addend + apply_dropout(x, …), both of one shape, in one pass where our kernel runs; a new tensor.
at::Tensor add_dropout(const at::Tensor& addend, const at::Tensor& x, const Dropout& dropout);

/// sum += apply_dropout(x, …), in one pass where our kernel runs.
void add_dropout_(const at::Tensor& sum, const at::Tensor& x, const Dropout& dropout);

/// apply_dropout() composed of at:: operations, for other GPUs; public for the test that compares both.
at::Tensor apply_dropout_tensor_ops(const at::Tensor& x, const Dropout& dropout);

/// x + u, u uniform in (-magnitude, magnitude): NEFTune's noise (Jain et al. 2023). Of an element's 16 bits r of the
/// hash above u is magnitude ((r + 0.5) / 32768 - 1), and host's key is derive_seed(seed, "noise", stream). `samples`
/// gives them and the seed; its p has no meaning. Autograd records the sum.
at::Tensor add_noise(const at::Tensor& x, const Dropout& samples, double magnitude);

/// apply_dropout() with autograd.
at::Tensor recorded_dropout(const at::Tensor& x, const Dropout& dropout);

}  // namespace trireme
