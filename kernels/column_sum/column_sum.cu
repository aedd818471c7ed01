#include "kernels/column_sum/column_sum.h"

#include "kernels/device.cuh"
#include "kernels/launch.h"

namespace trireme::kernels {

namespace {

constexpr int kColumns = 32, kLanes = 16;

template <class T>
__global__ void __launch_bounds__(kColumns* kLanes) column_sum_kernel(const float* __restrict__ partial, int64_t rows, int64_t columns,
                                                                      int64_t stride, T* out, bool accumulate) {
  __shared__ float lanes[kLanes][kColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < columns) {
#pragma unroll 8
    for (int64_t row = threadIdx.y; row < rows; row += kLanes) sum += partial[row * stride + column];
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  float total = accumulate ? to_float(out[column]) : 0.0f;
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) total += lanes[lane][threadIdx.x];
  out[column] = from_float<T>(total);
}

}  // namespace

cudaError_t column_sum(const float* partial, int64_t rows, int64_t columns, int64_t stride, void* out, Element element, bool accumulate,
                       cudaStream_t stream) {
  if (columns == 0) return cudaSuccess;
  return dispatch(element, [&](auto zero) {
    using T = decltype(zero);
    const dim3 block(kColumns, kLanes);
    column_sum_kernel<T><<<static_cast<unsigned>(ceil_div(columns, kColumns)), block, 0, stream>>>(partial, rows, columns, stride,
                                                                                                    static_cast<T*>(out), accumulate);
    return cudaGetLastError();
  });
}

}  // namespace trireme::kernels
