#pragma once
// The part of layer_norm_backward() with sums over rows, for 16-byte aligned rows of whole 16-byte packs with at most
// kMaxColumns columns.

#include "kernels/layer_norm/layer_norm.h"

namespace trireme::kernels {

/// Upper limit per multiprocessor of the partial rows that backward kernels write to the workspace.
constexpr int kLayerNormBlocksPerSm = 8;

/// Writes *partials rows of [2 or, with d_bias, 3][columns] to the workspace, for column_sums().
cudaError_t layer_norm_backward_sums(const LayerNormBackward& arguments, int64_t* partials, cudaStream_t stream);

}  // namespace trireme::kernels
