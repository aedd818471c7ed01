#pragma once
// The arithmetic of gelu.h on the device.

#include "kernels/device.cuh"
#include "kernels/gelu/gelu.h"

namespace trireme::kernels {

/// P(-|z|) and exp(-z^2 / 2) for bf16: Abramowitz & Stegun 7.1.26 for erfc(|z| / sqrt 2) is a
/// polynomial times that exponential.
__device__ inline float normal_tail(float z, float& bell) {
  bell = fast_exp2(-0.72134752f * z * z);
  const float t = fast_reciprocal(fmaf(0.3275911f * 0.70710678f, fabsf(z), 1.0f));
  float tail = fmaf(0.5f * 1.061405429f, t, 0.5f * -1.453152027f);
  tail = fmaf(tail, t, 0.5f * 1.421413741f);
  tail = fmaf(tail, t, 0.5f * -0.284496736f);
  tail = fmaf(tail, t, 0.5f * 0.254829592f);
  return tail * (t * bell);
}

/// P(z) and P'(z). The forms for 16-bit types err by much less than their roundings, also where P
/// is small.
template <class T, GeluKind kKind>
__device__ inline void gelu_share(float z, float& share, float& slope) {
  if constexpr (kKind == GeluKind::kTanh) {
    constexpr float kA = 0.79788456f, kB = 0.044715f;  // sqrt(2 / pi)
    const float square = z * z,
                twice = 2.0f * kA * z * fmaf(kB, square, 1.0f);  // P = sigmoid(twice)
    if constexpr (sizeof(T) == 2)
      share = fast_reciprocal(1.0f + fast_exp2(-1.44269504f * twice));
    else
      share = __fdividef(1.0f, 1.0f + expf(-twice));
    slope = share * (1.0f - share) * (2.0f * kA) * fmaf(3.0f * kB, square, 1.0f);
  } else {
    constexpr float kDensity = 0.39894228f;  // 1 / sqrt(2 pi)
    if constexpr (sizeof(T) == 2) {
      float bell, tail;  // P(-|z|)
      if constexpr (__is_same(T, __nv_bfloat16)) {
        tail = normal_tail(z, bell);
      } else {
        bell = fast_exp2(-0.72134752f * z * z);
        tail = 0.5f * erfcf(0.70710678f * fabsf(z));
      }
      share = z < 0.0f ? tail : 1.0f - tail;
      slope = kDensity * bell;
    } else {
      share = 0.5f * erfcf(-0.70710678f * z);
      slope = kDensity * expf(-0.5f * z * z);
    }
  }
}

template <class T, int kWidth>
__device__ inline void gelu(float (&z)[kWidth], GeluKind kind) {
  float share, slope;
  if (kind == GeluKind::kErf) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if constexpr (__is_same(T, __nv_bfloat16)) {
        // z P(z) = max(z, 0) - |z| P(-|z|): no choice between two forms. P(-16) is 0, an infinite
        // z must not meet it.
        const float tail = normal_tail(z[i], slope);
        z[i] = fmaf(-fminf(fabsf(z[i]), 16.0f), tail, fmaxf(z[i], 0.0f));
      } else {
        gelu_share<T, GeluKind::kErf>(z[i], share, slope), z[i] *= share;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      gelu_share<T, GeluKind::kTanh>(z[i], share, slope), z[i] *= share;
  }
}

/// d becomes the gradient.
template <class T, int kWidth>
__device__ inline void gelu_gradient(float (&d)[kWidth], const float (&z)[kWidth], GeluKind kind) {
  float share, slope;
  if (kind == GeluKind::kErf) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      gelu_share<T, GeluKind::kErf>(z[i], share, slope), d[i] *= fmaf(z[i], slope, share);
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      gelu_share<T, GeluKind::kTanh>(z[i], share, slope), d[i] *= fmaf(z[i], slope, share);
  }
}

}  // namespace trireme::kernels
