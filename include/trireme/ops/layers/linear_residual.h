#pragma once
// The linear layer that ends a sub-layer, as one autograd node with hand-written backward. It saves the forms of x that
// the weight and the adapters need, with a branch norm the linear layer's output, with a post-norm the sum, and these
// norms' statistics; dropout is recomputed.

#include "trireme/ops/dropout.h"
#include "trireme/ops/layers/linear.h"
#include "trireme/ops/norm.h"

#include <ATen/core/Tensor.h>

namespace trireme {

/// How a sub-layer joins the residual: post_norm(residual + multiplier * dropout(norm(linear(x)))). `norm`: of any
/// kind; `post_norm`: kNone or kLayer, kNone beside a norm or a multiplier.
struct ResidualJoin {
  Dropout dropout{};
  Norm norm{};
  double multiplier = 1;
  Norm post_norm{};
  std::shared_ptr<BranchGradient> gradient{};  // of the result; null: none
};

/// x [.., in], residual and result [.., out], one dtype. Shapes that do not fit are an internal error. `tile_tokens`:
/// as in norm_linear().
at::Tensor linear_residual(const at::Tensor& x, const at::Tensor& residual, const Linear& linear,
                           const ResidualJoin& join = {}, int64_t tile_tokens = 0);

}  // namespace trireme
