#pragma once
// GELU's backward from FP8 codes, for rows that it can look slopes up for.

#include "kernels/gelu/gelu.h"

namespace trireme::kernels {

/// Whether gelu_backward_codes() takes such rows, given pointers on 16-byte boundaries.
bool gelu_backward_codes_fits(const GeluBackward& arguments);

/// As gelu_backward(), but leaves of d_bias *blocks rows of partial sums in the workspace.
cudaError_t gelu_backward_codes(const GeluBackward& arguments, int64_t* blocks, cudaStream_t stream);

}  // namespace trireme::kernels
