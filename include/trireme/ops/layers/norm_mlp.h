#pragma once
// The MLP of a block, as one autograd node with hand-written backward. It saves h, the norm's statistics, the up
// projection's output (in FP8 if the recipe says so; not if `recompute_up` is set), for GELU the activation, with
// `keep_inputs` the outputs of the norm and of the gated activation, and what linear_residual() saves. The rest is
// recomputed.

#include "trireme/nn/offload.h"
#include "trireme/ops/activation.h"
#include "trireme/ops/layers/linear_residual.h"
#include "trireme/ops/norm.h"

#include <ATen/core/Tensor.h>

namespace trireme {

struct Mlp {
  Norm norm{};
  Linear up;  // of a gated activation: gate and up projections stacked, [2F, D]
  Activation activation = Activation::kSwiglu;
  Linear down;
  ResidualJoin join{};
  bool recompute_up = false;  // backward recomputes the up projection instead of keeping it
  /// Where the up projection's output, and for GELU the activation, wait for backward as values of `block`; null: on
  /// the device. Not with tiles, nor with `recompute_up`.
  OffloadStore* offload = nullptr;
  int64_t block = 0;
  /// Forward keeps the inputs of both projections where their weight gradients read them in their plain form; otherwise
  /// backward recomputes them.
  bool keep_inputs = false;
  /// Nobody reads the result's values, only its gradient flows (BlockRun::again): the down projection is skipped where
  /// backward does not read its result either.
  bool result_unused = false;
  /// Goes through so many tokens at a time, forward and backward (0: all), and keeps h only: backward computes the rest
  /// of each tile again. Beside h, the result and their gradients it holds one tile. Gradients of parameters are summed
  /// over the tiles in fp32. Tiles that hold all tokens are none: nothing changes.
  int64_t tile_tokens = 0;
};

/// down(activation(up(norm(h)))) joined to h; h and result [.., D]. GELU requires that the up projection has a bias.
/// Shapes or dtypes that do not fit are an internal error.
at::Tensor norm_mlp(const at::Tensor& h, const Mlp& mlp);

}  // namespace trireme
