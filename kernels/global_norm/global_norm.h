#pragma once
// Sum of squares over several buffers, and whether every element is finite:
//
//   *square = (accumulate ? *square : 0) + sum_i g_i^2        fp64
//
// Squares of finite fp32 numbers cannot overflow fp64, so *square is finite exactly if every element is; no second flag
// is needed until the sum over ranks. clip_factor() turns it into the multiplier and skip flag of the optimizer. One
// launch per 64 buffers plus one; the order of summation is fixed for a device model. workspace:
// global_norm_workspace() doubles. Any count and alignment. No allocation, no synchronisation.

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

/// norm = sqrt(*square) * |scale| with scale = *unscale (or 1);  *skip = norm finite ? 0 : 1;  *multiplier = scale *
/// (max_norm > 0 ? min(1, max_norm / (norm + 1e-6)) : 1) as in torch.nn.utils.clip_grad_norm_, or 0 if skipped.
cudaError_t clip_factor(const double* square, const float* unscale, double max_norm, float* norm, float* multiplier,
                        float* skip, cudaStream_t stream);

}  // namespace trireme::kernels
