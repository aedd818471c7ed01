#include "kernels/column_sum/column_sum.h"

#include "kernels/device.cuh"
#include "kernels/launch.h"
#include "kernels/launch_behind.cuh"

#include <type_traits>

namespace trireme::kernels {

namespace {

constexpr int kThreads = 32;  // threads along the columns
template <int kWidth>
constexpr int kLanes = kWidth == 1 ? 32 : 16;  // threads along the rows

/// A thread sums kWidth adjacent columns: four if they are 16-byte aligned, otherwise one.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads* kLanes<kWidth>)
    column_sum_kernel(const float* partial, int64_t rows, int64_t columns, int64_t stride, const ColumnSums outs,
                      bool accumulate) {
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
  float total = accumulate ? to_float(out[first + c]) : 0.0f;
#pragma unroll
  for (int lane = 0; lane < kLanes<kWidth>; ++lane) total += reinterpret_cast<const float*>(lanes[lane])[c];
  out[first + c] = from_float<T>(total);
}

template <class T, int kWidth>
cudaError_t launch(const float* partial, int64_t rows, int64_t columns, int64_t stride, const ColumnSums& outs,
                   bool accumulate, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(columns, kThreads * kWidth)), static_cast<unsigned>(outs.count)),
      block(kThreads, kLanes<kWidth>);
  return launch_behind(column_sum_kernel<T, kWidth>, grid, block, 0, stream, partial, rows, columns, stride, outs,
                       accumulate);
}

cudaError_t launch(const float* partial, int64_t rows, int64_t columns, int64_t stride, const ColumnSums& outs,
                   Element element, bool accumulate, cudaStream_t stream) {
  if (columns == 0 || outs.count == 0) return cudaSuccess;
  // With more blocks than fit at once, fewer and wider blocks finish earlier.
  const bool wide = columns % 4 == 0 && stride % 4 == 0 && aligned16(partial) &&
                    ceil_div(columns, kThreads) * outs.count > 2 * multiprocessors();
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    return wide ? launch<T, 4>(partial, rows, columns, stride, outs, accumulate, stream)
                : launch<T, 1>(partial, rows, columns, stride, outs, accumulate, stream);
  });
}

}  // namespace

cudaError_t column_sum(const float* partial, int64_t rows, int64_t columns, int64_t stride, void* out, Element element,
                       bool accumulate, cudaStream_t stream) {
  return launch(partial, rows, columns, stride, {{out}, 1}, element, accumulate, stream);
}

cudaError_t column_sums(const float* partial, int64_t rows, int64_t columns, const ColumnSums& outs, Element element,
                        bool accumulate, cudaStream_t stream) {
  return launch(partial, rows, columns, columns * outs.count, outs, element, accumulate, stream);
}

}  // namespace trireme::kernels
