#include "trireme/ops/layers/linear_residual.h"

#include "layers/linear_layer.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"

#include <ATen/ATen.h>

namespace trireme {

ResidualTail::ResidualTail(const ResidualJoin& join, const at::Tensor& residual, const char* what, InputList& inputs)
    : dropout_(join.dropout),
      multiplier_(join.multiplier),
      norm_(join.norm, residual, what, inputs),
      post_norm_(join.post_norm, residual, what, inputs) {
  const bool plain = !norm_.present() && multiplier_ == 1;
  TRIREME_CHECK(!post_norm_.present() || (join.post_norm.kind == NormKind::kLayer && plain), what,
                ": the norm after the residual must be a layer norm, without a norm of the branch or a multiplier");
}

at::Tensor ResidualTail::forward(LinearLayer& linear, const Operand& x, const at::Tensor& residual) {
  if (post_norm_.present()) {
    LayerNormed normed = layer_norm_forward(linear.forward(x, LinearLayer::Bias::kLeave),
                                            {linear.bias(), dropout_, residual}, post_norm_.norm(), {.plain = true});
    const at::Tensor y = std::move(normed.y.plain);
    kept_ = std::move(normed);
    return y;
  }
  if (norm_.present() || multiplier_ != 1) {
    at::Tensor branch = linear.forward(x, LinearLayer::Bias::kAdd);
    if (norm_.present()) {
      branch_ = branch;
      branch = norm_.forward(branch_, {.plain = true}).plain;
    }
    if (dropout_.active()) branch = apply_dropout(branch, dropout_);
    return at::add(residual, branch, multiplier_);
  }
  if (!dropout_.active()) return linear.forward(x, LinearLayer::Bias::kAdd, residual);
  return add_dropout(residual, linear.forward(x, LinearLayer::Bias::kAdd), dropout_);
}

ResidualTail::Parts ResidualTail::backward(const LinearLayer& linear, const at::Tensor& dy, Gradients& gradients) {
  const OperandForms forms = linear.gradient_forms(gradients);
  Parts parts;
  if (post_norm_.present()) {
    const LayerNormGradients d = layer_norm_backward(dy, kept_, post_norm_.norm(), dropout_, {},
                                                     post_norm_.trained(gradients), forms.column_sums);
    kept_ = {};
    post_norm_.set_gradients(d.d_weight, d.d_bias, gradients);
    parts.d_residual = d.d_sum;
    parts.d_branch.plain = d.dx;
    parts.d_branch.column_sums = d.d_branch_bias;
    complete(parts.d_branch, forms);
    return parts;
  }
  parts.d_residual = dy;
  if (norm_.present() || multiplier_ != 1) {
    at::Tensor d_branch = dropout_.active() ? apply_dropout(dy, dropout_) : dy;
    if (multiplier_ != 1) d_branch = d_branch * multiplier_;
    if (norm_.present()) {
      d_branch = norm_.backward(d_branch, branch_, {}, gradients);
      branch_ = at::Tensor();
    }
    parts.d_branch = make_operand(d_branch, forms);
    return parts;
  }
  parts.d_branch = make_dropped_operand(dy, dropout_, forms);
  return parts;
}

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
                           const ResidualJoin& join) {
  TRIREME_CHECK(residual.size(-1) == linear.weight.matrix.size(0) &&
                    residual.numel() / residual.size(-1) == x.numel() / x.size(-1),
                "linear_residual: x ", x.sizes(), ", weight ", linear.weight.matrix.sizes(), ", residual ",
                residual.sizes());
  InputList inputs;
  const Input input = inputs.add(x.contiguous()), added = inputs.add(residual);
  LinearResidualNode node{input,
                          added,
                          {linear, x, "linear_residual", inputs},
                          {join, residual, "linear_residual", inputs},
                          x.sizes().vec()};
  return run_node(std::move(node), inputs)[0];
}

}  // namespace trireme
