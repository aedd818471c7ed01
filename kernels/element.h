#pragma once
// Element types of kernel arguments and the conversions that all kernels share. Arithmetic is fp32.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

enum class Element { kF32, kF16, kBF16 };

/// Calls f with a value of the element's type: `dispatch(type, [&](auto zero) { using T = decltype(zero); … })`.
template <class F>
cudaError_t dispatch(Element element, const F& f) {
  switch (element) {
    case Element::kF32: return f(float{});
    case Element::kF16: return f(__half{});
    case Element::kBF16: return f(__nv_bfloat16{});
  }
  return cudaErrorInvalidValue;
}

#ifdef __CUDACC__
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// 16 bytes of elements, loaded and stored in one instruction.
template <class T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / sizeof(T);
  T value[kCount];
};
#endif

/// Whether all pointers are 16-byte aligned.
template <class... P>
bool aligned16(P... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace trireme::kernels
