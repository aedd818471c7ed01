#pragma once
// Private to ops/: the 32-bit mixing function of the dropout mask on the CPU, equal to
// kernels/dropout/dropout_hash.cuh.

#include <cstdint>

namespace trireme {

constexpr uint32_t kDropoutMixFirst = 0x21f0aaad, kDropoutMixSecond = 0x735a2d97;

inline uint32_t dropout_mix(uint32_t x) {
  x ^= x >> 16;
  x *= kDropoutMixFirst;
  x ^= x >> 15;
  x *= kDropoutMixSecond;
  return x ^ x >> 15;
}

}  // namespace trireme
