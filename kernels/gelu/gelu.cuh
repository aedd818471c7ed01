#pragma once
// The arithmetic of gelu.h on the device.

#include "kernels/device.cuh"
#include "kernels/gelu/gelu.h"

#include <type_traits>

namespace trireme::kernels {

/// c[0] + c[1] x + ...
template <int kCount>
__device__ inline float polynomial(const float (&c)[kCount], float x) {
  float value = c[kCount - 1];
#pragma unroll
  for (int i = kCount - 2; i >= 0; --i) value = fmaf(value, x, c[i]);
  return value;
}

/// z P(z) with erf for 16-bit types, computed as max(z, 0) - |z| P(-|z|), which needs no case distinction. log2 P(-x)
/// is a polynomial, a minimax fit of the relative error of P on [0, 7]: for x < 5 within 2.5e-5 of P for bf16 and
/// 1.2e-5 for fp16, beyond that absolutely within 1e-10. x is clamped to 16, where P counts as 0, so that an infinite z
/// does not give NaN; a NaN stays NaN.
template <class T>
__device__ inline float gelu_erf(float z) {
  constexpr float kSix[] = {-1.00001442f,   -1.15092337f,     -0.459478021f, -0.0527457334f,
                            0.00780489761f, -0.000720114622f, 3.02671197e-5f},
                  kSeven[] = {-0.999996245f, -1.15122449f,     -0.458571881f,  -0.0538042597f,
                              0.0084036971f, -0.000895603793f, 5.59033579e-5f, -1.47551214e-6f};
  float x, tail;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(fabsf(z)), "f"(16.0f));
  if constexpr (__is_same(T, __nv_bfloat16))
    tail = fast_exp2(polynomial(kSix, x));
  else
    tail = fast_exp2(polynomial(kSeven, x));
  return fmaf(-x, tail, fmaxf(z, 0.0f));
}

/// (z P(z))' for 16-bit types. At z = -x it is (root - x) times a positive factor whose logarithm is a polynomial (erf:
/// fitted as above; tanh: on [0, 5.8] to 8e-6, to 2 % where the factor is below 1e-5). This form loses no digits near
/// the root and needs one special-function instruction. At z = x it is 1 minus that value.
template <GeluKind kKind>
struct GeluSlope {
  float below, factor;
  __device__ explicit GeluSlope(float x) {
    if constexpr (kKind == GeluKind::kErf) {
      constexpr float kLogFactor[] = {-0.588415027f, -0.382900268f,   -0.561990261f,  -0.0526107848f,
                                      0.0129951881f, -0.00218025898f, 0.00021486124f, -9.17089073e-6f};
      below = 0.751791525f - x, factor = fast_exp2(polynomial(kLogFactor, x));
    } else {
      constexpr float kLogFactor[] = {-0.589676976f,  -0.385220319f,   -0.561884403f,   -0.0537865721f,  0.0122749424f,
                                      0.00382623542f, -0.00319371629f, 0.000592087046f, -3.59974074e-05f};
      below = 0.752461422f - x, factor = fast_exp2(polynomial(kLogFactor, x));
    }
  }
  __device__ float negative() const { return below * factor; }
  __device__ float positive() const { return fmaf(-below, factor, 1.0f); }
};

/// P(z), and P'(z) for fp32 only. With 16-bit types the tanh form's error is far below their rounding error, also where
/// P is small.
template <class T, GeluKind kKind>
__device__ inline void gelu_share(float z, float& share, float& slope) {
  if constexpr (kKind == GeluKind::kTanh) {
    // P = sigmoid(2 kA (z + kB z^3)), kA = sqrt(2 / pi)
    constexpr float kA = 0.79788456f, kB = 0.044715f;
    const float square = z * z;
    if constexpr (sizeof(T) == 2)
      share =
          fast_reciprocal(1.0f + fast_exp2(z * fmaf(-1.44269504f * 2.0f * kA * kB, square, -1.44269504f * 2.0f * kA)));
    else
      share = __fdividef(1.0f, 1.0f + expf(-2.0f * kA * z * fmaf(kB, square, 1.0f)));
    slope = share * (1.0f - share) * fmaf(6.0f * kA * kB, square, 2.0f * kA);
  } else {
    constexpr float kDensity = 0.39894228f;  // 1 / sqrt(2 pi)
    share = 0.5f * erfcf(-0.70710678f * z);
    slope = kDensity * expf(-0.5f * z * z);
  }
}

template <class T, GeluKind kKind, int kWidth>
__device__ inline void gelu(float (&z)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if constexpr (kKind == GeluKind::kErf && sizeof(T) == 2) {
      z[i] = gelu_erf<T>(z[i]);
    } else {
      float share, slope;
      gelu_share<T, kKind>(z[i], share, slope);
      z[i] *= share;
    }
  }
}

/// Multiplies d by the slope at z.
template <class T, GeluKind kKind, int kWidth>
__device__ inline void gelu_gradient(float (&d)[kWidth], const float (&z)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if constexpr (sizeof(T) == 2) {
      const GeluSlope<kKind> slope(fabsf(z[i]));
      d[i] *= z[i] < 0.0f ? slope.negative() : slope.positive();
    } else {
      float share, slope;
      gelu_share<T, kKind>(z[i], share, slope);
      d[i] *= fmaf(z[i], slope, share);
    }
  }
}

/// Calls f with the kind as a compile-time constant, so that one branch serves all packs.
template <class F>
__device__ inline void with_kind(GeluKind kind, const F& f) {
  if (kind == GeluKind::kErf)
    f(std::integral_constant<GeluKind, GeluKind::kErf>{});
  else
    f(std::integral_constant<GeluKind, GeluKind::kTanh>{});
}

}  // namespace trireme::kernels
