#pragma once
// Sums of dQ in shared memory between the key tiles of a sequence. Each thread keeps its own values of a block of query
// rows as their upper 24 bits: truncated to 16 bits of mantissa, so that infinities and NaN are preserved. The result
// is rounded to 8 or 11 bits.

#include "kernels/hopper.cuh"

namespace trireme::kernels::backward {

/// Bytes of a warp's 16 rows x 64 columns.
constexpr uint32_t kWarpSums = 32 * 32 * 3;

template <int kCount>
__device__ inline void keep_sums(uint32_t at, const float (&x)[kCount]) {
  constexpr int kQuarters = kCount / 4;
  const uint32_t lane_at = at + threadIdx.x % 32 * 16;
  uint32_t words[3 * kQuarters];
#pragma unroll
  for (int i = 0; i < kQuarters; ++i) {
    const uint32_t last = __float_as_uint(x[4 * i + 3]);
#pragma unroll
    for (int j = 0; j < 3; ++j)
      words[3 * i + j] = __byte_perm(__float_as_uint(x[4 * i + j]), last, 0x5321 + 0x1000 * j);
  }
#pragma unroll
  for (int i = 0; i < 3 * kQuarters / 4; ++i)
    hopper::store_shared4(lane_at + i * 512, __uint_as_float(words[4 * i]), __uint_as_float(words[4 * i + 1]),
                          __uint_as_float(words[4 * i + 2]), __uint_as_float(words[4 * i + 3]));
}

/// Adds the kept sums to x.
template <int kCount>
__device__ inline void add_kept_sums(uint32_t at, float (&x)[kCount]) {
  constexpr int kQuarters = kCount / 4;
  const uint32_t lane_at = at + threadIdx.x % 32 * 16;
  uint32_t words[3 * kQuarters];
#pragma unroll
  for (int i = 0; i < 3 * kQuarters / 4; ++i) {
    const int4 v = hopper::load_shared16(lane_at + i * 512);
    words[4 * i] = static_cast<uint32_t>(v.x);
    words[4 * i + 1] = static_cast<uint32_t>(v.y);
    words[4 * i + 2] = static_cast<uint32_t>(v.z);
    words[4 * i + 3] = static_cast<uint32_t>(v.w);
  }
#pragma unroll
  for (int i = 0; i < kQuarters; ++i) {
    const uint32_t a = words[3 * i], b = words[3 * i + 1], c = words[3 * i + 2];
    x[4 * i] += __uint_as_float(a << 8);
    x[4 * i + 1] += __uint_as_float(b << 8);
    x[4 * i + 2] += __uint_as_float(c << 8);
    x[4 * i + 3] += __uint_as_float(__byte_perm(__byte_perm(a, b, 0x0730), c, 0x7210) & 0xffffff00u);
  }
}

/// threadIdx.x % 32, read from the special register where keeping it would take one register too many.
__device__ inline uint32_t lane_again() {
  uint32_t lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// Adds a warp's sums in fragment order to x.
template <int kCount>
__device__ inline void add_staged_sums(uint32_t at, float (&x)[kCount]) {
  const uint32_t lane_at = at + lane_again() * 16;
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    const int4 v = hopper::load_shared16(lane_at + i * 512);
    x[4 * i] += __int_as_float(v.x);
    x[4 * i + 1] += __int_as_float(v.y);
    x[4 * i + 2] += __int_as_float(v.z);
    x[4 * i + 3] += __int_as_float(v.w);
  }
}

}  // namespace trireme::kernels::backward
