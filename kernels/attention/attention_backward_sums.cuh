#pragma once
// Sums of dQ in shared memory between the key tiles of a sequence. Each thread keeps its own 32 values of a block of query rows, as their upper
// 24 bits: cut off behind 16 bits of mantissa, so that infinities and NaN stay what they are; results are rounded to 8 or 11.

#include "kernels/attention/hopper.cuh"

namespace trireme::kernels::backward {

/// Bytes of a warp.
constexpr uint32_t kWarpSums = 32 * 32 * 3;

__device__ inline void keep_sums(uint32_t at, const float (&x)[32]) {
  const uint32_t lane_at = at + threadIdx.x % 32 * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t words[12];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* four = x + 16 * half + 4 * i;
      const uint32_t last = __float_as_uint(four[3]);
      words[3 * i] = __byte_perm(__float_as_uint(four[0]), last, 0x5321);
      words[3 * i + 1] = __byte_perm(__float_as_uint(four[1]), last, 0x6321);
      words[3 * i + 2] = __byte_perm(__float_as_uint(four[2]), last, 0x7321);
    }
#pragma unroll
    for (int i = 0; i < 3; ++i)
      hopper::store_shared4(lane_at + (3 * half + i) * 512, __uint_as_float(words[4 * i]), __uint_as_float(words[4 * i + 1]),
                            __uint_as_float(words[4 * i + 2]), __uint_as_float(words[4 * i + 3]));
  }
}

/// x += what was kept.
__device__ inline void add_kept_sums(uint32_t at, float (&x)[32]) {
  const uint32_t lane_at = at + threadIdx.x % 32 * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t words[12];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int4 v = hopper::load_shared16(lane_at + (3 * half + i) * 512);
      words[4 * i] = static_cast<uint32_t>(v.x);
      words[4 * i + 1] = static_cast<uint32_t>(v.y);
      words[4 * i + 2] = static_cast<uint32_t>(v.z);
      words[4 * i + 3] = static_cast<uint32_t>(v.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t a = words[3 * i], b = words[3 * i + 1], c = words[3 * i + 2];
      float* four = x + 16 * half + 4 * i;
      four[0] += __uint_as_float(a << 8);
      four[1] += __uint_as_float(b << 8);
      four[2] += __uint_as_float(c << 8);
      four[3] += __uint_as_float(__byte_perm(__byte_perm(a, b, 0x0730), c, 0x7210) & 0xffffff00u);
    }
  }
}

}  // namespace trireme::kernels::backward
