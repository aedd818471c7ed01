#include "kernels/fp8_columns/fp8_columns.h"

#include "kernels/fp8/fp8.cuh"
#include "kernels/launch.h"
#include "kernels/quantize/tile.cuh"

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kRowsPerBlock = 128, kUnroll = 4;

/// Magnitudes compare as integers, with NaN above infinity; two 16-bit elements at a time.
template <class T>
__device__ inline uint32_t larger(uint32_t top, uint32_t word) {
  if constexpr (sizeof(T) == 2) return __vmaxu2(top, word & 0x7fff7fffu);
  return max(top, word & 0x7fffffffu);
}

/// A warp takes 32 packs of a row, a block kRowsPerBlock rows. top [columns] starts as zeros.
template <class T>
__global__ void __launch_bounds__(kThreads)
    maxima_kernel(const T* x, float* top, int64_t rows, int64_t columns, int64_t blocks_down) {
  constexpr int kWidth = 16 / sizeof(T);
  __shared__ __align__(16) uint32_t parts[kWarps][4][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = (blockIdx.x / blocks_down * 32 + lane) * kWidth,
                first = blockIdx.x % blocks_down * kRowsPerBlock + warp;
  const bool here = column < columns;
  Words<4> most = {};
#pragma unroll
  for (int pass = 0; pass < kRowsPerBlock / kWarps; pass += kUnroll) {
    Words<4> in[kUnroll] = {};
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int64_t row = first + (pass + k) * kWarps;
      if (here && row < rows) in[k] = load_words(x + row * columns + column);
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
#pragma unroll
      for (int w = 0; w < 4; ++w) most.word[w] = larger<T>(most.word[w], in[k].word[w]);
  }
#pragma unroll
  for (int w = 0; w < 4; ++w) parts[warp][w][lane] = most.word[w];
  __syncthreads();
  if (warp != 0 || !here) return;
#pragma unroll
  for (int other = 1; other < kWarps; ++other)
#pragma unroll
    for (int w = 0; w < 4; ++w) most.word[w] = larger<T>(most.word[w], parts[other][w][lane]);
  float value[kWidth];
  to_floats(as_pack<T>(most), value);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) raise_amax(top + column + i, value[i]);
}

/// Overwrites the maxima with the factors of the codes.
__global__ void __launch_bounds__(kThreads) scales_kernel(float* top, float* inverse, int64_t columns) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  const float value = row_inverse_scale(top[column]);
  inverse[column] = value;
  top[column] = 1.0f / value;
}

template <class T>
struct ScaledColumns : tile::Plain<T> {
  static constexpr bool kColumnScales = true;
  const float* factor;
  __device__ void scale_columns(float (&v)[16 / sizeof(T)], int64_t column) const {
#pragma unroll
    for (int i = 0; i < static_cast<int>(16 / sizeof(T)); i += 4) {
      const float4 by = __ldg(reinterpret_cast<const float4*>(factor + column + i));
      v[i] *= by.x, v[i + 1] *= by.y, v[i + 2] *= by.z, v[i + 3] *= by.w;
    }
  }
};

template <class T>
cudaError_t run(const Fp8Columns& a, cudaStream_t stream) {
  const T* x = static_cast<const T*>(a.x);
  if (const cudaError_t error = cudaMemsetAsync(a.workspace, 0, static_cast<size_t>(a.columns) * sizeof(float), stream);
      error != cudaSuccess)
    return error;
  const int64_t down = ceil_div(a.rows, kRowsPerBlock), across = ceil_div(a.columns, 32 * 16 / sizeof(T));
  maxima_kernel<T>
      <<<static_cast<unsigned>(down * across), kThreads, 0, stream>>>(x, a.workspace, a.rows, a.columns, down);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  scales_kernel<<<static_cast<unsigned>(ceil_div(a.columns, kThreads)), kThreads, 0, stream>>>(a.workspace, a.inverse,
                                                                                               a.columns);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  tile::Output out;
  out.transposed = a.transposed;
  out.rows = a.rows;
  out.columns = a.columns;
  ScaledColumns<T> source;
  source.x = x;
  source.factor = a.workspace;
  return tile::launch</*kSums=*/false>(source, out, stream);
}

}  // namespace

cudaError_t fp8_columns(const Fp8Columns& a, cudaStream_t stream) {
  if (a.rows % 16 != 0 || a.columns % 16 != 0 || a.rows == 0 || a.columns == 0 || a.transposed == nullptr ||
      a.inverse == nullptr || a.workspace == nullptr || !aligned16(a.x, a.transposed, a.workspace))
    return cudaErrorInvalidValue;
  return dispatch(a.element, [&](auto zero) { return run<decltype(zero)>(a, stream); });
}

}  // namespace trireme::kernels
