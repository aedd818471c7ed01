#include "kernels/column_sum/column_sum.h"

#include "kernels/device.cuh"
#include "kernels/launch.h"
#include "kernels/launch_behind.cuh"

namespace trireme::kernels {

namespace {

constexpr int kColumns = 32, kLanes = 32;

template <class T>
__global__ void __launch_bounds__(kColumns* kLanes)
    column_sum_kernel(const float* partial, int64_t rows, int64_t columns, int64_t stride,
                      const ColumnSums outs, bool accumulate) {
  static_assert(kMaxColumnSums == 3);
  T* out = static_cast<T*>(blockIdx.y == 0   ? outs.out[0]
                           : blockIdx.y == 1 ? outs.out[1]
                                             : outs.out[2]);
  if (out == nullptr) return;
  partial += blockIdx.y * columns;
  __shared__ float lanes[kLanes][kColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0.0f;
  await_kernel_before();
  if (column < columns) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < rows; row += kLanes)
      sum += __ldcg(partial + row * stride + column);  // written while this block may have stood by
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  float total = accumulate ? to_float(out[column]) : 0.0f;
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) total += lanes[lane][threadIdx.x];
  out[column] = from_float<T>(total);
}

cudaError_t launch(const float* partial, int64_t rows, int64_t columns, int64_t stride,
                   const ColumnSums& outs, Element element, bool accumulate, cudaStream_t stream) {
  if (columns == 0 || outs.count == 0) return cudaSuccess;
  return dispatch(element, [&](auto zero) {
    const dim3 grid(static_cast<unsigned>(ceil_div(columns, kColumns)),
                    static_cast<unsigned>(outs.count)),
        block(kColumns, kLanes);
    return launch_behind(column_sum_kernel<decltype(zero)>, grid, block, 0, stream, partial, rows,
                         columns, stride, outs, accumulate);
  });
}

}  // namespace

cudaError_t column_sum(const float* partial, int64_t rows, int64_t columns, int64_t stride,
                       void* out, Element element, bool accumulate, cudaStream_t stream) {
  return launch(partial, rows, columns, stride, {{out}, 1}, element, accumulate, stream);
}

cudaError_t column_sums(const float* partial, int64_t rows, int64_t columns, const ColumnSums& outs,
                        Element element, bool accumulate, cudaStream_t stream) {
  return launch(partial, rows, columns, columns * outs.count, outs, element, accumulate, stream);
}

}  // namespace trireme::kernels
