#include "kernels/fp8/fp8.cuh"
#include "kernels/launch.h"
#include "kernels/quantize/quantize.h"

#include <type_traits>

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256, kUnroll = 4, kBlocksPerSm = 16;

/// Values that are read once, 16 bytes at a time: their codes are written, or their largest magnitude raises *amax.
struct Values {
  const void* x;
  uint8_t* data;
  const float* scale;
  float* amax;
  int64_t packs;
};

template <class T, int kWidth, bool kCodes>
__global__ void __launch_bounds__(kThreads) values_kernel(const Values a) {
  const T* x = static_cast<const T*>(a.x);
  const float scale = kCodes ? *a.scale : 1.0f;
  std::conditional_t<kWidth == 1, Amax<float>, Amax<T>> top;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; first < a.packs;
       first += kUnroll * step) {
    Vec<T, kWidth> in[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (first + k * step < a.packs) in[k] = load_stream<T, kWidth>(x + (first + k * step) * kWidth);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (first + k * step >= a.packs) continue;
      float v[kWidth];
      to_floats(in[k], v);
      if constexpr (kCodes)
        store_fp8(a.data + (first + k * step) * kWidth, v, scale);
      else if constexpr (kWidth == 1)
        top.add(Vec<float, 1>{{v[0]}});
      else
        top.add(in[k]);
    }
  }
  if constexpr (!kCodes) raise_amax_by_warp(a.amax, top.get());
}

template <class T, int kWidth, bool kCodes>
cudaError_t launch(const Values& a, cudaStream_t stream) {
  if (a.packs == 0) return cudaSuccess;
  const int64_t blocks = ceil_div(a.packs, kThreads), most = static_cast<int64_t>(multiprocessors()) * kBlocksPerSm;
  values_kernel<T, kWidth, kCodes><<<static_cast<unsigned>(blocks < most ? blocks : most), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

template <bool kCodes>
cudaError_t launch(Values a, int64_t count, Element element, cudaStream_t stream) {
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = 16 / sizeof(T);
    a.packs = aligned16(a.x, a.data) ? count / kWidth : 0;
    if (const cudaError_t error = launch<T, kWidth, kCodes>(a, stream); error != cudaSuccess) return error;
    const int64_t done = a.packs * kWidth;
    a.x = static_cast<const T*>(a.x) + done;
    if constexpr (kCodes) a.data += done;
    a.packs = count - done;
    return launch<T, 1, kCodes>(a, stream);
  });
}

}  // namespace

cudaError_t quantize_values(const void* x, uint8_t* data, const float* scale, int64_t count, Element element,
                            cudaStream_t stream) {
  return launch<true>({x, data, scale, nullptr, 0}, count, element, stream);
}

cudaError_t amax(const void* x, int64_t count, Element element, float* amax, cudaStream_t stream) {
  return launch<false>({x, nullptr, nullptr, amax, 0}, count, element, stream);
}

}  // namespace trireme::kernels
