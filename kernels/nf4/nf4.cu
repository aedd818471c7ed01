#include "kernels/nf4/nf4.h"

#include "kernels/device.cuh"
#include "kernels/launch.h"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256, kUnroll = 4, kValues = 8;  // values of a thread: one word of codes

/// Reads half a byte a value and writes `sizeof(T)`; adjacent threads have adjacent words. A lookup in 16 floats has no
/// bank conflict: each is in a bank of its own.
template <class T>
__global__ void __launch_bounds__(kThreads) nf4_kernel(const Nf4Dequantize a, bool once) {
  __shared__ float book[16], map[256];
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += kThreads) map[i] = a.map[i];
  if (threadIdx.x < 16) book[threadIdx.x] = a.book[threadIdx.x];
  const int64_t words = a.count / kValues;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kUnroll + threadIdx.x;
  const auto* const codes = reinterpret_cast<const uint32_t*>(a.codes);
  const float offset = *a.offset;
  uint32_t word[kUnroll];
  uint8_t scale[kUnroll];
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int64_t w = first + k * kThreads;
    if (w >= words) continue;
    word[k] = __ldcs(codes + w);
    scale[k] = __ldg(a.absmax + w / (64 / kValues));
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int64_t w = first + k * kThreads;
    if (w >= words) continue;
    const float absmax = __fadd_rn(__fmul_rn(map[scale[k]], __ldg(a.nested + w / (64 / kValues * 256))), offset);
    float v[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i)  // in each byte the high half comes first
      v[i] = __fmul_rn(book[word[k] >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0)) & 15], absmax);
    T* const out = static_cast<T*>(a.out) + w * kValues;
    if constexpr (sizeof(T) == 2) {
      store_whole(out, from_floats<T>(v), once);
    } else {
      store_whole(out, Vec<float, 4>{{v[0], v[1], v[2], v[3]}}, once);
      store_whole(out + 4, Vec<float, 4>{{v[4], v[5], v[6], v[7]}}, once);
    }
  }
}

template <class T>
cudaError_t dequantize(const Nf4Dequantize& a, cudaStream_t stream) {
  const int64_t blocks = ceil_div(a.count, kThreads * kUnroll * kValues);
  nf4_kernel<T>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(a, streams(a.count * static_cast<int64_t>(sizeof(T))));
  return cudaGetLastError();
}

}  // namespace

cudaError_t nf4_dequantize(const Nf4Dequantize& a, cudaStream_t stream) {
  if (a.count == 0) return cudaSuccess;
  if (a.count % kValues != 0) return cudaErrorInvalidValue;
  switch (a.element) {
    case Element::kF16: return dequantize<__half>(a, stream);
    case Element::kBF16: return dequantize<__nv_bfloat16>(a, stream);
    case Element::kF32: return dequantize<float>(a, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace trireme::kernels
