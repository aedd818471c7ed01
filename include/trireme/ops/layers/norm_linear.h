#pragma once
// A norm and the linear layer that reads it, as one autograd node with hand-written backward: kept are x, the norm's
// statistics and what the recipe needs; the normalised rows are recomputed where backward reads them.

#include "trireme/ops/activation.h"
#include "trireme/ops/layers/linear.h"
#include "trireme/ops/norm.h"

#include <ATen/core/Tensor.h>

#include <array>

namespace trireme {

/// {activation(linear(norm(x))), x}; x [.., in]. Users of x downstream (the residual) take the second result, so that
/// its gradient is added inside the kernel that forms this layer's gradient to x. `activation`: none or a GELU, which
/// needs a bias of the linear layer.
std::array<at::Tensor, 2> norm_linear(const at::Tensor& x, const Norm& norm, const Linear& linear,
                                      Activation activation = Activation::kNone);

}  // namespace trireme
