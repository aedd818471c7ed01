#pragma once
// Activation recomputation: a block that keeps only its input and runs its forward again in backward.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace trireme {

/// What backward recomputes of a block: nothing, the first projection of the MLP (its widest tensor), or the whole
/// block from its input.
enum class Recompute { kNone, kMlp, kFull };

using BlockFunction = std::function<at::Tensor(const at::Tensor& x, const std::vector<at::Tensor>& parameters)>;

/// y = f(x, parameters), recomputed in backward. `f` uses x and `parameters` alone (anything else it captures must be
/// constant and must not require grad) and gives the same result when called again.
///
/// Kept until backward: x, the parameter tensor objects, f. Backward calls f again on detached aliases of x and the
/// parameters under grad mode, differentiates that small graph, and returns the gradients of x and of every parameter
/// that requires one; so hooks and accumulators of the real parameters see one gradient, from the outer graph. x need
/// not require grad.
///
/// With unit storage: enter_unit() goes before and leave_unit() after it, never inside f. leave_unit's backward makes
/// the unit whole just before the rerun and enter_unit's releases it after, so that a rerun calls no hook of its own.
at::Tensor recomputed(const BlockFunction& f, const at::Tensor& x, const std::vector<at::Tensor>& parameters);

}  // namespace trireme
