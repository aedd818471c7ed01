#pragma once
// Device implementation of the hash in include/trireme/ops/dropout.h.

#include "kernels/element.h"

#include <cstdint>

namespace trireme::kernels {

/// dropout_mix() after its first step.
__device__ inline uint32_t dropout_mix_on(uint32_t x) {
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0x735a2d97u;
  return x ^ (x >> 15);
}
__device__ inline uint32_t dropout_mix(uint32_t x) { return dropout_mix_on(x ^ (x >> 16)); }

/// The hash keys of a sample.
struct DropoutHash {
  uint32_t k0, k1;
  /// The keys for words whose index has these upper 32 bits; `upper` 0 leaves the keys unchanged.
  __device__ DropoutHash of_upper(uint32_t upper) const { return {k0, k1 ^ (upper * 0x9e3779b9u)}; }
};

/// Elements of a sample whose word indices fit 32 bits. Kernels with 32-bit word indices reject longer samples.
constexpr int64_t kDropoutElements32 = int64_t{1} << 33;

__device__ inline DropoutHash sample_hash(uint64_t id, uint32_t t0, uint32_t t1) {
  const uint32_t k0 = dropout_mix(dropout_mix(static_cast<uint32_t>(id) ^ t0) ^ static_cast<uint32_t>(id >> 32) ^ t1);
  return {k0, dropout_mix(k0 + 0x9e3779b9u)};
}

/// The draw for the word whose index has these lower 32 bits.
__device__ inline uint32_t dropout_draw(DropoutHash key, uint32_t word) {
  return dropout_mix(dropout_mix(word ^ key.k0) ^ key.k1);
}

/// Dropout of the elements first, first + 1, … of a sample; first is a multiple of the pack's size. Products are
/// rounded to T.
template <class T>
__device__ inline Pack<T> dropped(Pack<T> value, DropoutHash sample, int64_t first, uint32_t threshold, float scale) {
  // The words of a pack have the same upper 32 bits.
  const DropoutHash key = sample.of_upper(static_cast<uint32_t>(first >> 33));
#pragma unroll
  for (int i = 0; i < Pack<T>::kCount; i += 2) {
    const uint32_t h = dropout_draw(key, static_cast<uint32_t>((first + i) >> 1));
    value.value[i] = from_float<T>((h & 0xffff) >= threshold ? to_float(value.value[i]) * scale : 0.0f);
    value.value[i + 1] = from_float<T>((h >> 16) >= threshold ? to_float(value.value[i + 1]) * scale : 0.0f);
  }
  return value;
}

/// dropout_draw() for words `word` + i, where i is below a power of two that divides `word` and is at most 65,536.
/// These words differ in their low bits only and share the first step.
class DropoutDraws {
 public:
  __device__ DropoutDraws(DropoutHash key, uint32_t word) : k1_(key.k1) {
    const uint32_t x = word ^ key.k0;
    start_ = x ^ (x >> 16);
  }
  __device__ uint32_t operator()(uint32_t i) const { return dropout_mix(dropout_mix_on(start_ ^ i) ^ k1_); }

 private:
  uint32_t start_, k1_;
};

}  // namespace trireme::kernels
