#pragma once
// GELU's backward from FP8 codes with a table of slopes per row.

#include "kernels/gelu/gelu.h"

namespace trireme::kernels {

/// Whether gelu_backward_codes() supports rows of this length, given 16-byte aligned pointers.
bool gelu_backward_codes_fits(const GeluBackward& arguments);

/// As gelu_backward(), but for d_bias it writes *blocks rows of partial sums to the workspace.
cudaError_t gelu_backward_codes(const GeluBackward& arguments, int64_t* blocks, cudaStream_t stream);

}  // namespace trireme::kernels
