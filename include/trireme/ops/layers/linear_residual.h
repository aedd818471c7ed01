#pragma once
// The linear layer that ends a sub-layer, as one autograd node with hand-written backward. It saves the forms of x that
// the weight and the adapters need and, with a post-norm, the sum and its statistics; dropout is recomputed.

#include "trireme/ops/dropout.h"
#include "trireme/ops/layers/linear.h"
#include "trireme/ops/norm.h"

#include <ATen/core/Tensor.h>

namespace trireme {

/// post_norm(residual + dropout(linear(x))); x [.., in], residual and result [.., out], one dtype. `post_norm`: kNone
/// or kLayer. Shapes that do not fit are an internal error. `tile_tokens`: as in norm_linear().
at::Tensor linear_residual(const at::Tensor& x, const at::Tensor& residual, const Linear& linear,
                           const Dropout& dropout = {}, const Norm& post_norm = {}, int64_t tile_tokens = 0);

}  // namespace trireme
