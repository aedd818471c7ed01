#include "kernels/fp8/fp8.cuh"
#include "kernels/launch.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/tile.cuh"

#include <type_traits>

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256, kUnroll = 4, kEdge = 32, kEdgeRows = 8, kFlatBlocksPerSm = 16;

/// Any size and alignment. T = uint8_t: x already holds codes.
template <class T>
__global__ void edge_kernel(const QuantizeTensor a, int64_t first_tile) {
  __shared__ uint8_t tile[kEdge][kEdge + 1];
  const int64_t row0 = static_cast<int64_t>(blockIdx.x) * kEdge, column0 = (first_tile + blockIdx.y) * kEdge;
  const T* x = static_cast<const T*>(a.x);
  float top = 0.0f;
  for (int j = threadIdx.y; j < kEdge; j += kEdgeRows) {
    const int64_t row = row0 + j, column = column0 + threadIdx.x;
    if (row >= a.rows || column >= a.columns) continue;
    uint8_t code[1];
    if constexpr (sizeof(T) == 1) {
      code[0] = x[row * a.columns + column];
    } else {
      const float value[1] = {to_float(x[row * a.columns + column])};
      top = amax_of(top, value[0]);
      store_fp8(code, value, *a.scale, a.format);
      if (a.data != nullptr) a.data[row * a.columns + column] = code[0];
    }
    tile[j][threadIdx.x] = code[0];
  }
  if constexpr (sizeof(T) > 1)
    if (a.amax != nullptr) raise_amax_by_warp(a.amax, top);
  if (a.transposed == nullptr) return;
  __syncthreads();
  for (int j = threadIdx.y; j < kEdge; j += kEdgeRows) {
    const int64_t row = row0 + threadIdx.x, column = column0 + j;
    if (row < a.rows && column < a.columns) a.transposed[column * a.rows + row] = tile[threadIdx.x][j];
  }
}

struct Flat {
  const void* x;
  uint8_t* data;  // null: amax only
  const float* scale;
  float* amax;  // may be null
  int64_t packs;
  Fp8Format format;
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) flat_kernel(const Flat a) {
  const T* x = static_cast<const T*>(a.x);
  std::conditional_t<kWidth == 1, Amax<float>, Amax<T>> top;
  const float scale = a.data != nullptr ? *a.scale : 1.0f;
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
      if constexpr (kWidth == 1)
        top.add(Vec<float, 1>{{v[0]}});
      else
        top.add(in[k]);
      if (a.data != nullptr) store_fp8(a.data + (first + k * step) * kWidth, v, scale, a.format);
    }
  }
  if (a.amax != nullptr) raise_amax_by_warp(a.amax, top.get());
}

template <class T, int kWidth>
cudaError_t launch_flat(const Flat& a, cudaStream_t stream) {
  if (a.packs == 0) return cudaSuccess;
  const int64_t blocks = ceil_div(a.packs, kThreads), most = static_cast<int64_t>(multiprocessors()) * kFlatBlocksPerSm;
  flat_kernel<T, kWidth><<<static_cast<unsigned>(blocks < most ? blocks : most), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t flat(Flat a, int64_t count, Element element, cudaStream_t stream) {
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = 16 / sizeof(T);
    a.packs = aligned16(a.x, a.data) ? count / kWidth : 0;
    if (const cudaError_t error = launch_flat<T, kWidth>(a, stream); error != cudaSuccess) return error;
    const int64_t done = a.packs * kWidth;
    a.x = static_cast<const T*>(a.x) + done;
    if (a.data != nullptr) a.data += done;
    a.packs = count - done;
    return launch_flat<T, 1>(a, stream);
  });
}

template <class T>
cudaError_t transposing(const QuantizeTensor& a, cudaStream_t stream) {
  const bool tiles = a.rows % 16 == 0 && a.columns % 16 == 0 && aligned16(a.x, a.data, a.transposed);
  if (tiles)
    return tile::launch</*kSums=*/false>(tile::Plain<T>{static_cast<const T*>(a.x)},
                                         {a.data, a.transposed, a.scale, a.amax, nullptr, a.rows, a.columns, a.format},
                                         stream);
  return launch_pieces(ceil_div(a.columns, kEdge), [&](int64_t first, unsigned tiles) {
    edge_kernel<T>
        <<<dim3(static_cast<unsigned>(ceil_div(a.rows, kEdge)), tiles), dim3(kEdge, kEdgeRows), 0, stream>>>(a, first);
    return cudaGetLastError();
  });
}

}  // namespace

cudaError_t quantize_tensor(const QuantizeTensor& a, cudaStream_t stream) {
  if (a.rows == 0 || a.columns == 0) return cudaSuccess;
  if (a.data == nullptr && a.transposed == nullptr) return cudaErrorInvalidValue;
  if (a.transposed == nullptr)
    return flat({a.x, a.data, a.scale, a.amax, 0, a.format}, a.rows * a.columns, a.element, stream);
  return dispatch(a.element, [&](auto zero) { return transposing<decltype(zero)>(a, stream); });
}

cudaError_t amax(const void* x, int64_t count, Element element, float* amax, cudaStream_t stream) {
  return flat({x, nullptr, nullptr, amax, 0, Fp8Format::kE4M3}, count, element, stream);
}

cudaError_t transpose_bytes(const uint8_t* in, uint8_t* out, int64_t rows, int64_t columns, cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  QuantizeTensor a;
  a.x = in, a.transposed = out, a.rows = rows, a.columns = columns;
  return transposing<uint8_t>(a, stream);
}

}  // namespace trireme::kernels
