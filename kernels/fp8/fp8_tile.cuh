#pragma once
// One pass over a matrix that writes its FP8 codes, their transpose, the largest magnitude and optionally the sums of
// its columns.

#include "kernels/fp8/fp8.cuh"
#include "kernels/launch.h"

#include <type_traits>

namespace trireme::kernels::tile {

constexpr int kThreads = 256, kSide = 128, kCluster = 4, kWarps = kThreads / 32;

struct Output {
  uint8_t* data = nullptr;  // null: not written
  uint8_t* transposed = nullptr;
  const float* scale = nullptr;
  float* amax = nullptr;            // null: not written
  const float* own_amax = nullptr;  // null: *scale is known; Fp8Operands::own_amax
  float* inverse = nullptr;
  /// [ceil(rows / kSide), columns], one row for each row of tiles; written if kSums.
  float* partial = nullptr;
  int64_t rows = 0, columns = 0;
  Fp8Format format = Fp8Format::kE4M3;
};

/// A source of values. `take` reads a pack of 16 bytes from shared memory; `value` computes the pack whose first
/// column is `column`, in the form that `with_form` passes as a constant. kCodes: packs already hold FP8 codes.
/// kInputs: number of matrices that are copied through shared memory because their packs would take too many registers,
/// 0 for codes; `from` gives the start of each. kColumnScales: `scale_columns` multiplies a pack by its columns' scales
/// instead of Output's. OneMatrix: the common part of sources with a single matrix.
template <class T>
struct OneMatrix {
  using Element = T;
  using Raw = Words<4>;
  static constexpr bool kCodes = sizeof(T) == 1, kColumnScales = false;
  static constexpr int kBlocksPerSm = 4, kInputs = kCodes ? 0 : 1;
  const T* x;
  __device__ const T* from(int /*input*/) const { return x; }
  template <class Slot>
  __device__ Raw take(const Slot& slot) const {
    return *reinterpret_cast<const Words<4>*>(slot(0));
  }
};

template <class T>
struct Plain : OneMatrix<T> {
  using typename OneMatrix<T>::Raw;
  template <class F>
  __device__ void with_form(const F& f) const {
    f(0);
  }
  template <class Form>
  __device__ Vec<T, 16 / sizeof(T)> value(const Raw& raw, int64_t /*column*/, Form /*form*/) const {
    return as_pack<T>(raw);
  }
};

/// The factor of the codes; with own_amax the first block writes its inverse.
__device__ inline float scale_of(const Output& a) {
  if (a.own_amax == nullptr) return *a.scale;
  const float inverse = row_inverse_scale(*a.own_amax, a.format);
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.inverse = inverse;
  return 1.0f / inverse;
}

/// Dynamic shared memory in bytes: holds first the packs of the inputs, then the tile.
template <class Source>
constexpr size_t shared_bytes() {
  return Source::kInputs == 0 ? kSide * kSide : kSide * kSide * sizeof(typename Source::Element) * Source::kInputs;
}

/// Waits until at most `pending` of this thread's cp.async groups are in flight.
__device__ inline void await_group(int pending) {
  if (pending == 3) copy_async_wait<3>();
  if (pending == 2) copy_async_wait<2>();
  if (pending == 1) copy_async_wait<1>();
  if (pending == 0) copy_async_wait<0>();
}

/// A tile of 128 rows x 128 columns.
///
/// A thread takes 4 rows x 16 columns, transposes them in registers into one word (4 rows) per column and stores the
/// words in shared memory, where a column is 32 words = 128 rows. Of the words of column c, group q (16 bytes) is
/// stored at q ^ key(c). The 8 lanes that share rows write columns with different keys, and the 8 lanes that read a
/// column read different groups: neither has bank conflicts.
template <class Source, bool kSums>
__global__ void __launch_bounds__(kThreads, Source::kBlocksPerSm)
    kernel(const Source source, const Output a, int clusters_down) {
  await_kernel_before();
  using T = typename Source::Element;
  extern __shared__ __align__(16) char shared[];
  uint32_t* const tile = reinterpret_cast<uint32_t*>(shared);
  __shared__ __align__(16) float column_parts[kSums ? kWarps : 1][kSums ? kSide : 1];
  constexpr int kWidth = 16 / sizeof(T), kGroups = 16 / kWidth, kStride = 8 * kWidth,
                kWords = kWidth / 4;  // words of codes per pack, four codes each
  const int member = static_cast<int>(blockIdx.x) % (kCluster * kCluster),
            group = static_cast<int>(blockIdx.x) / (kCluster * kCluster);
  const int64_t row0 = static_cast<int64_t>(group % clusters_down * kCluster + member % kCluster) * kSide;
  const int64_t column0 = static_cast<int64_t>(group / clusters_down * kCluster + member / kCluster) * kSide;
  if (row0 >= a.rows || column0 >= a.columns) return;
  const int lane = threadIdx.x % 8,
            quad = threadIdx.x / 8;  // columns lane * kWidth + g * kStride + i, rows 4 * quad + j
  const int64_t first = (row0 + 4 * quad) * a.columns + column0 + lane * kWidth;

  const bool rows_here = row0 + 4 * quad < a.rows;
  const auto columns_here = [&](int g) { return column0 + lane * kWidth + g * kStride < a.columns; };
  // Each thread copies the packs that it reads itself.
  const auto slot = [&](int j, int g, int input) {
    return shared + (((j * kGroups + g) * Source::kInputs + input) * kThreads + threadIdx.x) * 16;
  };
  Words<4> in[Source::kCodes ? 4 : 1] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int64_t at = first + j * a.columns + g * kStride;
      if (!rows_here || !columns_here(g)) continue;
      if constexpr (Source::kCodes) {
        in[j] = load_words(reinterpret_cast<const uint32_t*>(source.x + at));
      } else {
#pragma unroll
        for (int input = 0; input < Source::kInputs; ++input) copy_async16(slot(j, g, input), source.from(input) + at);
      }
    }
    if constexpr (!Source::kCodes) copy_async_commit();
  }

  uint32_t codes[4][kGroups][kWords] = {};
  if constexpr (Source::kCodes) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int w = 0; w < kWords; ++w) codes[j][0][w] = in[j].word[w];
  } else {
    Amax<T> top;
    const float scale = Source::kColumnScales ? 1.0f : scale_of(a);
    float sums[kGroups][kWidth] = {};
    const auto quantize = [&](auto form, auto format) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        await_group(3 - j);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          if (!rows_here || !columns_here(g)) continue;
          const int64_t column = column0 + lane * kWidth + g * kStride;
          const Vec<T, kWidth> value =
              source.value(source.take([&](int input) { return slot(j, g, input); }), column, form);
          top.add(value);
          float v[kWidth];
          to_floats(value, v);
          if constexpr (kSums) {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) sums[g][i] += v[i];
          }
          if constexpr (Source::kColumnScales) source.scale_columns(v, column);
          const auto packed = to_fp8<decltype(format)::value>(v, scale);
#pragma unroll
          for (int w = 0; w < kWords; ++w) codes[j][g][w] = packed.word[w];
          if (a.data != nullptr) {
            uint8_t* to = a.data + first + j * a.columns + g * kStride;
            *reinterpret_cast<uint2*>(to) = make_uint2(codes[j][g][0], codes[j][g][1]);
          }
        }
      }
    };
    source.with_form([&](auto form) { with_format(a.format, [&](auto format) { quantize(form, format); }); });
    if (a.amax != nullptr) raise_amax_by_warp(a.amax, top.get());
    if constexpr (kSums) {
      // Of the 16 column sums, each of the four lanes that share columns ends with a quarter.
      const bool upper_half = threadIdx.x & 8, upper_quarter = threadIdx.x & 16;
      const auto at = [&](int c) -> float& { return sums[c / kWidth][c % kWidth]; };
      float half[8], quarter[4];
#pragma unroll
      for (int i = 0; i < 8; ++i)
        half[i] = (upper_half ? at(8 + i) : at(i)) + __shfl_xor_sync(0xffffffffu, upper_half ? at(i) : at(8 + i), 8);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        quarter[i] = (upper_quarter ? half[4 + i] : half[i]) +
                     __shfl_xor_sync(0xffffffffu, upper_quarter ? half[i] : half[4 + i], 16);
      const int own = (upper_half ? 8 : 0) + (upper_quarter ? 4 : 0);
      *reinterpret_cast<float4*>(
          &column_parts[threadIdx.x / 32][lane * kWidth + own % kWidth + own / kWidth * kStride]) =
          make_float4(quarter[0], quarter[1], quarter[2], quarter[3]);
    }
  }

  if constexpr (!Source::kCodes) __syncthreads();  // the tile overwrites the packs
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const uint32_t low = __byte_perm(codes[0][g][w], codes[1][g][w], 0x5140),
                     low2 = __byte_perm(codes[2][g][w], codes[3][g][w], 0x5140);
      const uint32_t high = __byte_perm(codes[0][g][w], codes[1][g][w], 0x7362),
                     high2 = __byte_perm(codes[2][g][w], codes[3][g][w], 0x7362);
      uint32_t* to = tile + (lane * kWidth + g * kStride + w * 4) * (kSide / 4) + (quad ^ lane << 2);
      to[0] = __byte_perm(low, low2, 0x5410);
      to[kSide / 4] = __byte_perm(low, low2, 0x7632);
      to[2 * (kSide / 4)] = __byte_perm(high, high2, 0x5410);
      to[3 * (kSide / 4)] = __byte_perm(high, high2, 0x7632);
    }
  if constexpr (kSums) allow_next_kernel();
  __syncthreads();

  if constexpr (kSums) {
    const int64_t column = column0 + threadIdx.x;
    if (threadIdx.x < kSide && column < a.columns) {
      float sum = 0.0f;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) sum += column_parts[warp][threadIdx.x];
      a.partial[row0 / kSide * a.columns + column] = sum;
    }
  }

  // A warp writes 128 bytes of each of 4 columns.
  const int64_t row = row0 + lane * 16;
  if (row >= a.rows) return;
#pragma unroll
  for (int i = 0; i < kSide / 32; ++i) {
    const int c = quad + i * 32, key = c / kWidth % 8;
    if (column0 + c < a.columns)
      store_whole(a.transposed + (column0 + c) * a.rows + row,
                  reinterpret_cast<const int4*>(tile)[c * 8 + (lane ^ key)], streams(a.rows * a.columns));
  }
}

/// rows and columns are multiples of 16, pointers 16-byte aligned.
template <bool kSums, class Source>
cudaError_t launch(const Source& source, const Output& a, cudaStream_t stream) {
  // Blocks that run at the same time take a square of tiles, so that their reads and their writes are close together in
  // DRAM pages.
  const int64_t down = ceil_div(a.rows, kSide * kCluster), across = ceil_div(a.columns, kSide * kCluster);
  if (const cudaError_t error = allow_shared_memory(kernel<Source, kSums>, shared_bytes<Source>());
      error != cudaSuccess)
    return error;
  return launch_behind(kernel<Source, kSums>, dim3(static_cast<unsigned>(down * across * kCluster * kCluster)),
                       kThreads, shared_bytes<Source>(), stream, source, a, static_cast<int>(down));
}

}  // namespace trireme::kernels::tile
