#pragma once
// The MLP of a block, as one autograd node with hand-written backward. Kept are h, the norm's statistics, the up
// projection's output (in FP8 where the recipe says so; not with `recompute_up`), with GELU its activation; the rest is
// recomputed.

#include "trireme/ops/activation.h"
#include "trireme/ops/dropout.h"
#include "trireme/ops/layers/linear.h"
#include "trireme/ops/norm.h"

#include <ATen/core/Tensor.h>

namespace trireme {

struct Mlp {
  Norm norm{};
  Linear up;  // kSwiglu: gate and up projections stacked, [2F, D]
  Activation activation = Activation::kSwiglu;
  Linear down;
  Dropout dropout{};
  Norm post_norm{};
  bool recompute_up = false;  // backward recomputes the up projection instead of keeping it
};

/// post_norm(h + dropout(down(activation(up(norm(h)))))); h [.., D].
at::Tensor norm_mlp(const at::Tensor& h, const Mlp& mlp);

}  // namespace trireme
