#pragma once
// A norm and the linear layer that reads its result, as one autograd node with hand-written backward. It saves x, the
// norm's statistics and the operands that the recipe needs. The normalised rows are saved if `keep_input` is set and
// the weight gradient reads their plain form; otherwise backward recomputes them.

#include "trireme/ops/activation.h"
#include "trireme/ops/layers/linear.h"
#include "trireme/ops/norm.h"

#include <ATen/core/Tensor.h>

#include <array>

namespace trireme {

/// {activation(linear(norm(x))), x}; x [.., in], first result [.., out]. Later users of x (the residual) must take the
/// second result: its gradient is then added in the kernel that computes this layer's gradient of x. `activation`:
/// none, or a GELU, which requires that the linear layer has a bias. Shapes or dtypes that do not fit are an internal
/// error. `tile_tokens`: goes through so many tokens at a time (0: all), so that beside inputs and results it holds one
/// tile; gradients of parameters are summed over the tiles in fp32.
std::array<at::Tensor, 2> norm_linear(const at::Tensor& x, const Norm& norm, const Linear& linear,
                                      Activation activation = Activation::kNone, bool keep_input = false,
                                      int64_t tile_tokens = 0);

}  // namespace trireme
