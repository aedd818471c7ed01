#pragma once
// The kernel behind layer_norm_backward() where sums over rows are wanted: for rows of whole 16-byte
// packs on 16-byte boundaries, at most kMaxColumns of them.

#include "kernels/layer_norm/layer_norm.h"

namespace trireme::kernels {

/// Partial rows that backward kernels leave in the workspace, for each multiprocessor, at most.
constexpr int kLayerNormBlocksPerSm = 8;

/// Leaves *partials rows of [2 or 3 (with d_bias), columns] in the workspace, for column_sums().
cudaError_t layer_norm_backward_sums(const LayerNormBackward& arguments, int64_t* partials, cudaStream_t stream);

}  // namespace trireme::kernels
