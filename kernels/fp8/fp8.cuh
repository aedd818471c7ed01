#pragma once
// Device side of the FP8 outputs that kernels write beside or instead of their 16-bit result.

#include "kernels/device.cuh"
#include "kernels/fp8/fp8_output.h"

#include <cuda_fp8.h>

namespace trireme::kernels {

__device__ inline constexpr float fp8_max(Fp8Format format) { return format == Fp8Format::kE4M3 ? 448.0f : 57344.0f; }

template <int kWidth>
__device__ inline void store_fp8(uint8_t* to, const float (&values)[kWidth], float scale, Fp8Format format) {
  const auto kind = format == Fp8Format::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  if constexpr (kWidth == 1) {
    *to = __nv_cvt_float_to_fp8(values[0] * scale, __NV_SATFINITE, kind);
  } else {
    Vec<uint16_t, kWidth / 2> packed;
#pragma unroll
    for (int i = 0; i < kWidth; i += 2)
      packed.value[i / 2] = __nv_cvt_float2_to_fp8x2({values[i] * scale, values[i + 1] * scale}, __NV_SATFINITE, kind);
    store<uint16_t, kWidth / 2>(reinterpret_cast<uint16_t*>(to), packed);
  }
}

/// Raises *amax to v, v >= 0; the result does not depend on the order. A NaN wins over every number.
__device__ inline void raise_amax(float* amax, float v) { atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(v) & 0x7fffffffu); }

/// max(|a|, |b|) that keeps a NaN, so that a bad activation is seen in the amax.
__device__ inline float amax_of(float a, float b) {
  const unsigned x = __float_as_uint(a) & 0x7fffffffu, y = __float_as_uint(b) & 0x7fffffffu;
  return __uint_as_float(x > y ? x : y);
}

__device__ inline float warp_amax(float v) { return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v) & 0x7fffffffu)); }

}  // namespace trireme::kernels
