#pragma once
// Activation recomputation: a block keeps its input, and what it names, and runs its forward again in backward.

#include "trireme/nn/offload.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme {

/// What backward recomputes of a block. kNone: nothing. kNorms: the outputs of norms and of the MLP's activation, which
/// the weight gradients of products read. kMlp: also the first projection of the MLP, whose output is the block's
/// widest tensor. kAttention: everything but attention, from the block's input and attention's output with its
/// statistics. kFull: the whole block from its input.
enum class Recompute { kNone, kNorms, kMlp, kAttention, kFull };

/// How a forward pass keeps what backward reads.
struct Recomputation {
  std::vector<Recompute> blocks{};  // empty: none recomputes anything
  /// Blocks with kAttention and kFull go through so many tokens at a time outside of attention; 0: through all.
  int64_t tile_tokens = 0;
  /// Takes what such blocks keep, and the MLP's first projection of blocks with kMlp, which then is not computed again;
  /// null: it stays on the device.
  OffloadStore* offload = nullptr;
  /// loss_head()'s most_logits: loss_head_logits() of the memory that the plan counts with.
  int64_t head_logits = 0;
};

/// One run of a recomputed function.
struct BlockRun {
  /// In backward: the graph of the result is used, its values are not. The function may return any values.
  bool again = false;
  /// What the first run leaves for the second, which then does not compute it. Requires no grad.
  std::vector<at::Tensor> kept{};
};

using BlockFunction =
    std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& parameters, BlockRun& run)>;

/// y = f(x, parameters), recomputed in backward. `f` must depend on x and `parameters` only (anything else that it
/// captures must be constant and must not require grad) and must give the same graph when it is called again.
///
/// Kept until backward: x, the parameter tensor objects, f, and BlockRun::kept. Backward calls f again in grad mode on
/// detached aliases of x and the parameters, differentiates that graph, and returns the gradients of x and of every
/// parameter that requires grad. Hooks and accumulators of the real parameters therefore see only the gradient of the
/// outer graph. x need not require grad.
///
/// With a unit store, call enter_unit() before and leave_unit() after this function, never inside f. The backward of
/// leave_unit() gathers the unit before the recomputation, and the backward of enter_unit() releases it afterwards.
///
/// `offload`: x and BlockRun::kept of this block wait in the store; null: on the device.
at::Tensor recomputed(const BlockFunction& f, const at::Tensor& x, const std::vector<at::Tensor>& parameters,
                      OffloadStore* offload = nullptr, int64_t block = 0);

}  // namespace trireme
