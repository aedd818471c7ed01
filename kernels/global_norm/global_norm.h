#pragma once
// Sum of squares over several buffers, and whether every element is finite:
//
//   *square = (accumulate ? *square : 0) + sum_i g_i^2        fp64
//
// Squares of finite fp32 numbers cannot overflow fp64, so *square is finite exactly if every element is; no second flag
// is needed until the sum over ranks. One launch per 64 buffers plus one; the order of summation is fixed for a device
// model. workspace: global_norm_workspace() doubles. Any count and alignment. No allocation, no synchronisation.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

struct GradientBuffer {
  const void* data;
  int64_t count;
  double share = 1.0;  // fraction of its squares that this rank counts, e.g. 1 / copies
};

int64_t global_norm_workspace();
cudaError_t global_square(const GradientBuffer* buffers, int num_buffers, Element element, double* square,
                          bool accumulate, double* workspace, cudaStream_t stream);

}  // namespace trireme::kernels
