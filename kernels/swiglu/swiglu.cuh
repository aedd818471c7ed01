#pragma once
// The arithmetic of swiglu.h on the device.

#include "kernels/device.cuh"

namespace trireme::kernels {

/// For 16-bit types the fast exponential's error of about 1e-6 is below their rounding error; for fp32 it is not. An
/// exact division would be a function call that makes its caller spill registers.
template <class T>
__device__ inline float sigmoid(float x) {
  if constexpr (sizeof(T) == 2)
    return fast_reciprocal(1.0f + fast_exp2(-1.44269504f * x));
  else
    return __fdividef(1.0f, 1.0f + expf(-x));
}

template <class T>
__device__ inline float swiglu(float g, float u) {
  return g * sigmoid<T>(g) * u;
}

/// Replaces g and u by dg and du.
template <class T>
__device__ inline void swiglu_gradient(float d, float& g, float& u) {
  const float s = sigmoid<T>(g), ds = d * s, dg = ds * u * fmaf(g, 1.0f - s, 1.0f);
  u = ds * g;
  g = dg;
}

}  // namespace trireme::kernels
