#include "layers/linear_layer.h"

#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace trireme {

namespace {

/// A contiguous gradient that only this node holds (a residual has one user) is overwritten by the sum; one that
/// autograd passes in another layout is copied.
Addend as_addend(const at::Tensor& other) {
  return {other, other.defined() && other.is_non_overlapping_and_dense() && other.is_contiguous()};
}

}  // namespace

LinearLayer::LinearLayer(const Linear& linear, const at::Tensor& x, const char* what, InputList& inputs)
    : weight_(linear.weight),
      dtype_(x.scalar_type()),
      records_(at::GradMode::is_enabled()),
      recipe_(&recipe_of(linear.weight.state.recipe)) {
  const at::Tensor& matrix = weight_.matrix;
  TRIREME_CHECK(matrix.dim() == 2 && x.size(-1) == matrix.size(1), what, ": input of ", x.size(-1), " columns, weight ",
                matrix.sizes());
  TRIREME_CHECK(weight_.quantized() || x.scalar_type() == matrix.scalar_type(), what, ": x is ", x.scalar_type(),
                ", weight ", matrix.scalar_type());
  TRIREME_CHECK(!linear.bias.defined() || (linear.bias.dim() == 1 && linear.bias.size(0) == matrix.size(0)), what,
                ": weight ", matrix.sizes(), ", bias ", linear.bias.defined() ? linear.bias.numel() : 0);
  matrix_ = inputs.add(matrix);
  bias_ = inputs.add(linear.bias);
  lora_ = LoraPart(linear.lora, matrix, inputs);
}

OperandForms LinearLayer::input_forms(bool recompute) const {
  OperandForms forms = recipe_->input_forms(weight_, records_ && !recompute && weight_.trained());
  forms.plain = forms.plain || lora_.active();
  return forms;
}

OperandForms LinearLayer::gradient_forms(const Gradients& gradients) const {
  OperandForms forms = recipe_->gradient_forms(weight_);
  forms.plain = forms.plain || lora_.active();
  forms.column_sums = gradients.wanted(bias_);
  return forms;
}

bool LinearLayer::backward_reads_input(const Gradients& gradients) const {
  return lora_.active() || (trained(gradients) && recipe_->traits().wgrad_reads_plain_input);
}

bool LinearLayer::may_read_input() const { return lora_.active() || wgrad_reads_plain_input(); }

at::Tensor LinearLayer::forward(const Operand& x, Bias bias, const at::Tensor& addend, bool recompute) {
  const at::Tensor& added_bias = bias == Bias::kAdd ? bias_.value : at::Tensor();
  const auto product = [&](const Addend& sum) {
    LinearRecipe::Kept again;
    return recipe_->forward(x, weight_, dtype_, added_bias, sum, recompute ? again : kept_);
  };
  if (!lora_.active()) return product({addend});
  if (!recompute) lora_.multiply_input(x.plain);
  // If possible the layer's own product comes last and adds to the adapters' part, which it reads while the tensor
  // cores are busy. This saves a separate pass over y.
  if (!addend.defined()) return product({lora_.output_part(out_features()), true});
  const at::Tensor y = product({addend});
  lora_.add_to(y);
  return y;
}

void LinearLayer::keep(const Operand& x) {
  if (lora_.active()) lora_.multiply_input(x.plain);
  recipe_->keep(x, weight_, kept_);
}

void LinearLayer::compute_weight_gradient(const Operand& dy, const at::Tensor& x, Gradients& gradients) {
  if (GradientSink* sink = weight_.state.sink; sink != nullptr) {
    recipe_->wgrad(dy, x, kept_, sink->target());
    sink->written();
    return;
  }
  at::Tensor gradient = at::empty(weight_.matrix.sizes(), weight_.matrix.options().dtype(dtype_));
  recipe_->wgrad(dy, x, kept_, {gradient, false});
  gradients.set(matrix_, std::move(gradient));
}

at::Tensor LinearLayer::backward(const Operand& dy, const std::function<at::Tensor()>& input, bool want_dx,
                                 const at::Tensor& d_other, Gradients& gradients) {
  if (lora_.active()) lora_.from_output_gradient(dy.plain, gradients);
  at::Tensor part;
  {
    const at::Tensor x = backward_reads_input(gradients) ? input() : at::Tensor();
    if (trained(gradients)) compute_weight_gradient(dy, x, gradients);
    if (lora_.active()) part = lora_.from_input(x, want_dx, gradients);
  }
  if (gradients.wanted(bias_)) gradients.set(bias_, dy.column_sums);
  if (!want_dx) return {};
  Addend addend = as_addend(d_other);
  if (part.defined()) {
    if (d_other.defined()) part.add_(d_other);
    addend = {part, true};
  }
  return recipe_->dgrad(dy, weight_, kept_, dtype_, addend);
}

}  // namespace trireme
