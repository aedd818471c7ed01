#include "kernels/fp8/fp8.cuh"
#include "kernels/launch.h"
#include "kernels/quantize/quantize.h"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256, kUnroll = 4, kBlocksPerSm = 16;

struct Values {
  const void* x;
  uint8_t* data;
  const float* scale;
  int64_t packs;
  Fp8Format format;
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) values_kernel(const Values a) {
  const T* x = static_cast<const T*>(a.x);
  const float scale = *a.scale;
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
      store_fp8(a.data + (first + k * step) * kWidth, v, scale, a.format);
    }
  }
}

template <class T, int kWidth>
cudaError_t launch(const Values& a, cudaStream_t stream) {
  if (a.packs == 0) return cudaSuccess;
  const int64_t blocks = ceil_div(a.packs, kThreads), most = static_cast<int64_t>(multiprocessors()) * kBlocksPerSm;
  values_kernel<T, kWidth><<<static_cast<unsigned>(blocks < most ? blocks : most), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace

cudaError_t quantize_values(const void* x, uint8_t* data, const float* scale, int64_t count, Element element,
                            Fp8Format format, cudaStream_t stream) {
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = 16 / sizeof(T);
    const int64_t packs = aligned16(x, data) ? count / kWidth : 0, done = packs * kWidth;
    if (const cudaError_t error = launch<T, kWidth>({x, data, scale, packs, format}, stream); error != cudaSuccess)
      return error;
    return launch<T, 1>({static_cast<const T*>(x) + done, data + done, scale, count - done, format}, stream);
  });
}

}  // namespace trireme::kernels
