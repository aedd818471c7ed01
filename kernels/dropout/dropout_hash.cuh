#pragma once
// The hash of include/trireme/ops/dropout.h on the device.

#include <cstdint>

namespace trireme::kernels {

__device__ inline uint32_t dropout_mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0x735a2d97u;
  return x ^ (x >> 15);
}

struct DropoutHash {
  uint32_t k0, k1;
};

__device__ inline DropoutHash sample_hash(uint64_t id, uint32_t t0, uint32_t t1) {
  const uint32_t k0 = dropout_mix(dropout_mix(static_cast<uint32_t>(id) ^ t0) ^
                                  static_cast<uint32_t>(id >> 32) ^ t1);
  return {k0, dropout_mix(k0 + 0x9e3779b9u)};
}

__device__ inline uint32_t dropout_draw(DropoutHash key, uint32_t word) {
  return dropout_mix(dropout_mix(word ^ key.k0) ^ key.k1);
}

}  // namespace trireme::kernels
