#include "kernels/scale/scale.h"

#include "kernels/device.cuh"
#include "kernels/launch.h"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256, kUnroll = 4;

/// kWidth elements are one 16-byte access of the wider type.
template <class T, class U, int kWidth>
__global__ void __launch_bounds__(kThreads) scale_kernel(const T* x, const float* factor, U* out, int64_t count) {
  const float by = *factor;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads * kUnroll + threadIdx.x) * kWidth;
  Vec<T, kWidth> vec[kUnroll];
#pragma unroll
  for (int k = 0; k < kUnroll; ++k)
    if (first + k * kThreads * kWidth < count)
      vec[k] = *reinterpret_cast<const Vec<T, kWidth>*>(x + first + k * kThreads * kWidth);
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    if (first + k * kThreads * kWidth >= count) continue;
    float v[kWidth];
    to_floats(vec[k], v);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] *= by;
    store(out + first + k * kThreads * kWidth, from_floats<U>(v));
  }
}

}  // namespace

cudaError_t scale(const void* x, Element x_element, const float* factor, void* out, Element out_element, int64_t count,
                  cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return dispatch(x_element, [&](auto x_zero) {
    using T = decltype(x_zero);
    return dispatch(out_element, [&](auto out_zero) {
      using U = decltype(out_zero);
      constexpr int kWidth = 16 / static_cast<int>(sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U));
      const auto launch = [&](auto width) {
        constexpr int kOwn = decltype(width)::value;
        scale_kernel<T, U, kOwn>
            <<<static_cast<unsigned>(ceil_div(count, kThreads * kUnroll * kOwn)), kThreads, 0, stream>>>(
                static_cast<const T*>(x), factor, static_cast<U*>(out), count);
        return cudaGetLastError();
      };
      if (count % kWidth == 0 && aligned16(x, out)) return launch(std::integral_constant<int, kWidth>{});
      return launch(std::integral_constant<int, 1>{});
    });
  });
}

}  // namespace trireme::kernels
