#include "trireme/ops/layers/linear_residual.h"

#include "flatten_tokens.h"
#include "layers/linear_layer.h"
#include "layers/residual_tail.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

struct LinearResidualNode {
  Input x, residual;
  LinearLayer linear;
  ResidualTail tail;
  std::vector<int64_t> x_shape;

  variable_list forward() {
    const ProfileRange range("linear_residual");
    const at::Tensor rows = flatten_tokens(x.value);
    const at::Tensor y = tail.forward(linear, make_operand(rows, linear.input_forms()), flatten_tokens(residual.value));
    const std::vector<int64_t> shape = residual.value.sizes().vec();
    residual.value = at::Tensor();
    if (!linear.may_read_input()) x.value = at::Tensor();
    return {at::_unsafe_view(y, shape)};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("linear_residual");
    const ResidualTail::Parts parts = tail.backward(linear, flatten_tokens(d_outputs[0]), gradients);
    if (gradients.wanted(residual)) gradients.set(residual, parts.d_residual.view(d_outputs[0].sizes()));
    const at::Tensor dx =
        linear.backward(parts.d_branch, [&] { return flatten_tokens(x.value); }, gradients.wanted(x), {}, gradients);
    if (dx.defined()) gradients.set(x, dx.view(x_shape));
  }
};

}  // namespace

at::Tensor linear_residual(const at::Tensor& x, const at::Tensor& residual, const Linear& linear,
                           const Dropout& dropout, const Norm& post_norm) {
  TRIREME_CHECK(residual.size(-1) == linear.weight.matrix.size(0) &&
                    residual.numel() / residual.size(-1) == x.numel() / x.size(-1),
                "linear_residual: x ", x.sizes(), ", weight ", linear.weight.matrix.sizes(), ", residual ",
                residual.sizes());
  InputList inputs;
  const Input input = inputs.add(x.contiguous()), added = inputs.add(residual);
  LinearResidualNode node{input,
                          added,
                          {linear, x, "linear_residual", inputs},
                          {dropout, post_norm, residual, "linear_residual", inputs},
                          x.sizes().vec()};
  return run_node(std::move(node), inputs)[0];
}

}  // namespace trireme
