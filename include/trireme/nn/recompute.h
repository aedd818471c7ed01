#pragma once
// Activation recomputation: a block keeps only its input and runs its forward again in backward.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace trireme {

/// What backward recomputes of a block. kNone: nothing. kNorms: the outputs of norms and of the MLP's activation, which
/// the weight gradients of products read. kMlp: also the first projection of the MLP, whose output is the block's
/// widest tensor. kFull: the whole block from its input.
enum class Recompute { kNone, kNorms, kMlp, kFull };

using BlockFunction = std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& parameters)>;

/// y = f(x, parameters), recomputed in backward. `f` must depend on x and `parameters` only (anything else that it
/// captures must be constant and must not require grad) and must give the same result when it is called again.
///
/// Kept until backward: x, the parameter tensor objects, f. Backward calls f again in grad mode on detached aliases of
/// x and the parameters, differentiates that graph, and returns the gradients of x and of every parameter that requires
/// grad. Hooks and accumulators of the real parameters therefore see only the gradient of the outer graph. x need not
/// require grad.
///
/// With a unit store, call enter_unit() before and leave_unit() after this function, never inside f. The backward of
/// leave_unit() gathers the unit before the recomputation, and the backward of enter_unit() releases it afterwards.
at::Tensor recomputed(const BlockFunction& f, const at::Tensor& x, const std::vector<at::Tensor>& parameters);

}  // namespace trireme
