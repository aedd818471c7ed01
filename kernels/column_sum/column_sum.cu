#include "kernels/column_sum/column_sum.h"

#include "kernels/device.cuh"
#include "kernels/dropout/dropout_hash.cuh"
#include "kernels/launch.h"

#include <algorithm>
#include <type_traits>

namespace trireme::kernels {

namespace {

constexpr int kThreads = 32;  // threads along the columns
template <int kWidth>
constexpr int kLanes = kWidth == 1 ? 32 : 16;  // threads along the rows

/// A thread sums kWidth adjacent columns: four if they are 16-byte aligned, otherwise one.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads* kLanes<kWidth>)
    column_sum_kernel(const float* partial, int64_t rows, int64_t columns, int64_t stride, const ColumnSums outs) {
  static_assert(kMaxColumnSums == 3);
  T* out = static_cast<T*>(blockIdx.y == 0 ? outs.out[0] : blockIdx.y == 1 ? outs.out[1] : outs.out[2]);
  if (out == nullptr) return;
  constexpr int kColumns = kThreads * kWidth;
  using Part = std::conditional_t<kWidth == 4, float4, float>;
  __shared__ Part lanes[kLanes<kWidth>][kThreads];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns,
                mine = first + static_cast<int64_t>(threadIdx.x) * kWidth;
  Part sum = {};
  await_kernel_before();
  if (mine < columns) {
    const float* from = partial + blockIdx.y * columns + mine;
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < rows; row += kLanes<kWidth>) {
      // Read through L2: the rows may have been written while this block was already resident.
      const Part part = __ldcg(reinterpret_cast<const Part*>(from + row * stride));
      if constexpr (kWidth == 4)
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
      else
        sum += part;
    }
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  const int c = static_cast<int>(threadIdx.y * kThreads + threadIdx.x);
  if (c >= kColumns || first + c >= columns) return;
  float total = 0.0f;
#pragma unroll
  for (int lane = 0; lane < kLanes<kWidth>; ++lane) total += reinterpret_cast<const float*>(lanes[lane])[c];
  out[first + c] = from_float<T>(total);
}

template <class T, int kWidth>
cudaError_t launch(const float* partial, int64_t rows, int64_t columns, int64_t stride, const ColumnSums& outs,
                   cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(columns, kThreads * kWidth)), static_cast<unsigned>(outs.count)),
      block(kThreads, kLanes<kWidth>);
  return launch_behind(column_sum_kernel<T, kWidth>, grid, block, 0, stream, partial, rows, columns, stride, outs);
}

cudaError_t launch(const float* partial, int64_t rows, int64_t columns, int64_t stride, const ColumnSums& outs,
                   Element element, cudaStream_t stream) {
  if (columns == 0 || outs.count == 0) return cudaSuccess;
  // With more blocks than fit at once, fewer and wider blocks finish earlier.
  const bool wide = columns % 4 == 0 && stride % 4 == 0 && aligned16(partial) &&
                    ceil_div(columns, kThreads) * outs.count > 2 * multiprocessors();
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    return wide ? launch<T, 4>(partial, rows, columns, stride, outs, stream)
                : launch<T, 1>(partial, rows, columns, stride, outs, stream);
  });
}

// A block sums a strip of rows for the columns of one warp's packs: its warps take the rows of the strip in turn, each
// several at a time, so that enough loads are under way.
// All blocks of 16-bit elements run at once: registers suffice for kBlocksPerSm of each pass.
constexpr int kWarps = 8, kBlocksPerSm = 3, kShortestStrip = 32;

template <class T>
constexpr int64_t kTile = 32 * Pack<T>::kCount;

/// Strips of rows: at most kBlocksPerSm blocks a multiprocessor, each of at least kShortestStrip rows. The tile
/// of 16-bit elements is assumed; fp32 has twice the blocks.
int64_t strips(int64_t rows, int64_t columns) {
  const int64_t tiles = ceil_div(columns, kTile<__half>),
                wanted = static_cast<int64_t>(multiprocessors()) * kBlocksPerSm / tiles,
                most = ceil_div(rows, kShortestStrip);
  return std::max<int64_t>(1, std::min(wanted, most));
}

enum class Pass { kPlain, kDropout, kScaled };

template <class T, Pass kPass>
__global__ void __launch_bounds__(32 * kWarps, kBlocksPerSm)
    matrix_column_sum_kernel(const MatrixColumnSum a, int64_t strip) {
  await_kernel_before();
  constexpr int kWidth = Pack<T>::kCount, kUnroll = kPass == Pass::kScaled ? 2 : 4;
  __shared__ float lanes[kWarps][kTile<T>];
  const int64_t first = blockIdx.x * kTile<T>, column = first + static_cast<int64_t>(threadIdx.x) * kWidth;
  const int64_t begin = blockIdx.y * strip, end = begin + strip < a.rows ? begin + strip : a.rows;
  float sums[kWidth] = {};
  if (column < a.columns) {
    const T* x = static_cast<const T*>(a.x) + column;
    T* out = kPass == Pass::kPlain ? nullptr : static_cast<T*>(a.dropped) + column;
    const T* other = kPass == Pass::kScaled ? static_cast<const T*>(a.other) + column : nullptr;
    float factors[kWidth] = {};
    if constexpr (kPass == Pass::kScaled)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) factors[i] = a.factors[column + i];
    // The sample of the row at hand: a strip has rows of few samples.
    int64_t sample_begin = 0, sample_end = 0;
    DropoutHash key = {};
#pragma unroll 1
    for (int64_t row = begin + threadIdx.y; row < end; row += kWarps * kUnroll) {
      Pack<T> values[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (row + u * kWarps < end) values[u] = *reinterpret_cast<const Pack<T>*>(x + (row + u * kWarps) * a.columns);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t r = row + u * kWarps;
        if (r >= end) continue;
        if constexpr (kPass == Pass::kScaled) {
          const Pack<T> second = *reinterpret_cast<const Pack<T>*>(other + r * a.columns);
          Pack<T> scaled;
#pragma unroll
          for (int i = 0; i < kWidth; ++i) {
            const float value = to_float(values[u].value[i]);
            sums[i] = fmaf(value, to_float(second.value[i]), sums[i]);
            scaled.value[i] = from_float<T>(value * factors[i]);
          }
          *reinterpret_cast<Pack<T>*>(out + r * a.columns) = scaled;
        } else {
          if constexpr (kPass == Pass::kDropout) {
            if (r >= sample_end) {  // the same for all threads of a warp
              const int64_t sample = r / a.rows_of_sample;
              sample_begin = sample * a.rows_of_sample, sample_end = sample_begin + a.rows_of_sample;
              key = sample_hash(static_cast<uint64_t>(a.ids[sample]), a.t0, a.t1);
            }
            values[u] =
                dropped(values[u], key, (a.first_row + r - sample_begin) * a.columns + column, a.threshold, a.scale);
            *reinterpret_cast<Pack<T>*>(out + r * a.columns) = values[u];
          }
#pragma unroll
          for (int i = 0; i < kWidth; ++i) sums[i] += to_float(values[u].value[i]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) lanes[threadIdx.y][threadIdx.x * kWidth + i] = sums[i];
  __syncthreads();
  for (int64_t c = threadIdx.y * 32 + threadIdx.x; c < kTile<T> && first + c < a.columns; c += 32 * kWarps) {
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) total += lanes[warp][c];
    a.workspace[blockIdx.y * a.columns + first + c] = total;
  }
}

}  // namespace

cudaError_t column_sum(const float* partial, int64_t rows, int64_t columns, int64_t stride, void* out, Element element,
                       cudaStream_t stream) {
  return launch(partial, rows, columns, stride, {{out}, 1}, element, stream);
}

cudaError_t column_sums(const float* partial, int64_t rows, int64_t columns, const ColumnSums& outs, Element element,
                        cudaStream_t stream) {
  return launch(partial, rows, columns, columns * outs.count, outs, element, stream);
}

int64_t matrix_column_sum_workspace(int64_t rows, int64_t columns) {
  return rows == 0 ? 0 : strips(rows, columns) * columns;
}

cudaError_t matrix_column_sum(const MatrixColumnSum& a, cudaStream_t stream) {
  if (a.columns == 0) return cudaSuccess;
  return dispatch(a.element, [&](auto zero) {
    using T = decltype(zero);
    if (a.columns % Pack<T>::kCount != 0 || !aligned16(a.x, a.dropped, a.other) || a.rows > UINT32_MAX ||
        (a.other != nullptr && (a.dropped == nullptr || a.factors == nullptr)))
      return cudaErrorInvalidValue;
    const int64_t count = a.rows == 0 ? 0 : strips(a.rows, a.columns);
    if (count > 0) {
      const int64_t strip = ceil_div(ceil_div(a.rows, count), kWarps) * kWarps;
      const dim3 grid(static_cast<unsigned>(ceil_div(a.columns, kTile<T>)), static_cast<unsigned>(count)),
          block(32, kWarps);
      const auto kernel = a.other != nullptr     ? matrix_column_sum_kernel<T, Pass::kScaled>
                          : a.dropped != nullptr ? matrix_column_sum_kernel<T, Pass::kDropout>
                                                 : matrix_column_sum_kernel<T, Pass::kPlain>;
      const cudaError_t error = launch_behind(kernel, grid, block, 0, stream, a, strip);
      if (error != cudaSuccess) return error;
    }
    return column_sum(a.workspace, count, a.columns, a.columns, a.sums, a.other != nullptr ? Element::kF32 : a.element,
                      stream);
  });
}

}  // namespace trireme::kernels
