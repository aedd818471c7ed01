#include "kernels/fp8/fp8.cuh"
#include "kernels/launch.h"
#include "kernels/quantize/quantize.h"

#include <type_traits>

namespace trireme::kernels {

namespace {

constexpr int kThreads = 256, kSide = 128, kUnroll = 4, kEdge = 32, kEdgeRows = 8,
              kFlatBlocksPerSm = 16, kCluster = 4;

/// A tile of 128 rows x 128 columns: codes in place and transposed. T = uint8_t: x holds codes
/// already.
///
/// A thread takes 4 rows x 16 columns, transposes them in registers into one word (4 rows) for each
/// column, and leaves the words in shared memory, where a column is 32 words = 128 rows. Of the
/// words of column c, group q (16 bytes) lies at q ^ key(c): the 8 lanes that share rows write
/// different columns of equal key order, the 8 lanes that read a column different groups of it,
/// both without conflicts.
template <class T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 4 ? 2 : 4)
    tile_kernel(const QuantizeTensor a, int clusters_down) {
  __shared__ __align__(16) uint32_t tile[kSide * kSide / 4];
  constexpr int kWidth = 16 / sizeof(T), kGroups = 16 / kWidth, kStride = 8 * kWidth;
  constexpr bool kCodes = sizeof(T) == 1;
  const int member = static_cast<int>(blockIdx.x) % (kCluster * kCluster),
            group = static_cast<int>(blockIdx.x) / (kCluster * kCluster);
  const int64_t row0 =
      static_cast<int64_t>(group % clusters_down * kCluster + member % kCluster) * kSide;
  const int64_t column0 =
      static_cast<int64_t>(group / clusters_down * kCluster + member / kCluster) * kSide;
  if (row0 >= a.rows || column0 >= a.columns) return;
  const int lane = threadIdx.x % 8,
            quad = threadIdx.x / 8;  // columns lane * kWidth + g * kStride + i, rows 4 * quad + j
  const T* x = static_cast<const T*>(a.x) + (row0 + 4 * quad) * a.columns + column0 + lane * kWidth;

  const bool rows_here = row0 + 4 * quad < a.rows;
  const auto columns_here = [&](int g) {
    return column0 + lane * kWidth + g * kStride < a.columns;
  };
  // Codes come as words: bytes in an array would go to local memory.
  using Word = std::conditional_t<kCodes, uint32_t, T>;
  Vec<Word, 16 / sizeof(Word)> in[4][kGroups] = {};
  if (rows_here) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
        if (columns_here(g))
          in[j][g] = load_stream<Word, 16 / sizeof(Word)>(
              reinterpret_cast<const Word*>(x + j * a.columns + g * kStride));
  }

  // Four codes to a word.
  constexpr int kWords = kWidth / 4;
  uint32_t codes[4][kGroups][kWords];
  if constexpr (kCodes) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int w = 0; w < kWords; ++w) codes[j][0][w] = in[j][0].value[w];
  } else {
    Amax<T> top;
    const float scale = *a.scale;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        top.add(in[j][g]);
        float v[kWidth];
        to_floats(in[j][g], v);
        const auto packed = to_fp8(v, scale, a.format);
#pragma unroll
        for (int w = 0; w < kWords; ++w) codes[j][g][w] = packed.word[w];
        if (a.data != nullptr && rows_here && columns_here(g)) {
          uint8_t* to =
              a.data + (row0 + 4 * quad + j) * a.columns + column0 + lane * kWidth + g * kStride;
          if constexpr (kWords == 2)
            *reinterpret_cast<uint2*>(to) = make_uint2(codes[j][g][0], codes[j][g][1]);
          else
            *reinterpret_cast<uint32_t*>(to) = codes[j][g][0];
        }
      }
    if (a.amax != nullptr) raise_amax_by_warp(a.amax, top.get());
  }

#pragma unroll
  for (int g = 0; g < kGroups; ++g)
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const uint32_t low = __byte_perm(codes[0][g][w], codes[1][g][w], 0x5140),
                     low2 = __byte_perm(codes[2][g][w], codes[3][g][w], 0x5140);
      const uint32_t high = __byte_perm(codes[0][g][w], codes[1][g][w], 0x7362),
                     high2 = __byte_perm(codes[2][g][w], codes[3][g][w], 0x7362);
      uint32_t* to =
          tile + (lane * kWidth + g * kStride + w * 4) * (kSide / 4) + (quad ^ lane << 2);
      to[0] = __byte_perm(low, low2, 0x5410);
      to[kSide / 4] = __byte_perm(low, low2, 0x7632);
      to[2 * (kSide / 4)] = __byte_perm(high, high2, 0x5410);
      to[3 * (kSide / 4)] = __byte_perm(high, high2, 0x7632);
    }
  __syncthreads();

  // A warp writes 128 bytes of each of 4 columns.
  const int64_t row = row0 + lane * 16;
  if (row >= a.rows) return;
#pragma unroll
  for (int i = 0; i < kSide / 32; ++i) {
    const int c = quad + i * 32, key = c / kWidth % 8;
    if (column0 + c < a.columns)
      store_whole(a.transposed + (column0 + c) * a.rows + row,
                  reinterpret_cast<const int4*>(tile)[c * 8 + (lane ^ key)],
                  streams(a.rows * a.columns));
  }
}

/// Any size and alignment. T = uint8_t: x holds codes already.
template <class T>
__global__ void edge_kernel(const QuantizeTensor a) {
  __shared__ uint8_t tile[kEdge][kEdge + 1];
  const int64_t row0 = static_cast<int64_t>(blockIdx.x) * kEdge,
                column0 = static_cast<int64_t>(blockIdx.y) * kEdge;
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
    if (row < a.rows && column < a.columns)
      a.transposed[column * a.rows + row] = tile[threadIdx.x][j];
  }
}

struct Flat {
  const void* x;
  uint8_t* data;  // null: amax only
  const float* scale;
  float* amax;  // or null
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
      if (first + k * step < a.packs)
        in[k] = load_stream<T, kWidth>(x + (first + k * step) * kWidth);
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
  const int64_t blocks = ceil_div(a.packs, kThreads),
                most = static_cast<int64_t>(multiprocessors()) * kFlatBlocksPerSm;
  flat_kernel<T, kWidth>
      <<<static_cast<unsigned>(blocks < most ? blocks : most), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t flat(Flat a, int64_t count, Element element, cudaStream_t stream) {
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kWidth = 16 / sizeof(T);
    a.packs = aligned16(a.x, a.data) ? count / kWidth : 0;
    if (const cudaError_t error = launch_flat<T, kWidth>(a, stream); error != cudaSuccess)
      return error;
    const int64_t done = a.packs * kWidth;
    a.x = static_cast<const T*>(a.x) + done;
    if (a.data != nullptr) a.data += done;
    a.packs = count - done;
    return launch_flat<T, 1>(a, stream);
  });
}

template <class T>
cudaError_t transposing(const QuantizeTensor& a, cudaStream_t stream) {
  const bool tiles =
      a.rows % 16 == 0 && a.columns % 16 == 0 && aligned16(a.x, a.data, a.transposed);
  if (tiles) {
    // Blocks that run together take a square of tiles, so that both what they read and what they
    // write lies together in DRAM's pages.
    const int64_t down = ceil_div(a.rows, kSide * kCluster),
                  across = ceil_div(a.columns, kSide * kCluster);
    tile_kernel<T>
        <<<static_cast<unsigned>(down * across * kCluster * kCluster), kThreads, 0, stream>>>(
            a, static_cast<int>(down));
    return cudaGetLastError();
  }
  const int64_t across = ceil_div(a.columns, kEdge);
  if (across > 65535) return cudaErrorInvalidValue;
  edge_kernel<T>
      <<<dim3(static_cast<unsigned>(ceil_div(a.rows, kEdge)), static_cast<unsigned>(across)),
         dim3(kEdge, kEdgeRows), 0, stream>>>(a);
  return cudaGetLastError();
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

cudaError_t transpose_bytes(const uint8_t* in, uint8_t* out, int64_t rows, int64_t columns,
                            cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  QuantizeTensor a;
  a.x = in, a.transposed = out, a.rows = rows, a.columns = columns;
  return transposing<uint8_t>(a, stream);
}

}  // namespace trireme::kernels
