#include "layers/linear_layer.h"

#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

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
  TRIREME_CHECK(!lora_.dora() || !weight_.trained(), what, ": DoRA of a weight that is trained itself");
}

OperandForms LinearLayer::input_forms(bool recompute) const {
  OperandForms forms = recipe_->input_forms(weight_, records_ && !recompute && weight_.trained());
  forms.plain = forms.plain || lora_.active();
  return forms;
}

OperandForms LinearLayer::gradient_forms(const Gradients& gradients) const {
  // DoRA without dropout multiplies dy before the products read it.
  OperandForms forms = lora_.dora() && !lora_.drops() ? OperandForms{} : recipe_->gradient_forms(weight_);
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
  if (lora_.dora()) return forward_dora(x, added_bias, addend);
  // If possible the layer's own product comes last and adds to the adapters' part, which it reads while the tensor
  // cores are busy. This saves a separate pass over y.
  if (!addend.defined()) return product({lora_.output_part(out_features()), true});
  const at::Tensor y = product({addend});
  lora_.add_to(y);
  return y;
}

void LinearLayer::keep(const Operand& x) {
  if (lora_.active()) lora_.multiply_input(x.plain);
  if (lora_.dora()) (void)forward_dora(x, {}, {});
  recipe_->keep(x, weight_, kept_);
}

Weight LinearLayer::rows_of_weight(int64_t begin, int64_t rows) const {
  Weight part{weight_.matrix.narrow(0, begin, rows), weight_.state};
  part.state.transposed.reset();
  return part;
}

at::Tensor LinearLayer::forward_dora(const Operand& x, const at::Tensor& bias, const at::Tensor& addend) {
  lora_.measure(weight_);
  LinearRecipe::Kept unused;  // a weight with an adapter is frozen
  kept_output_.clear();
  const at::Tensor& factors = lora_.factors();
  if (!lora_.drops()) {
    const at::Tensor z = recipe_->forward(x, weight_, dtype_, {}, {lora_.output_part(out_features()), true}, unused);
    const at::Tensor y = scale_columns(z, factors, bias, addend);
    if (records_) kept_output_.push_back(z);
    return y;
  }
  const at::Tensor y = recipe_->forward(x, weight_, dtype_, bias, {addend}, unused);
  for (size_t slot = 0; slot < lora_.count(); ++slot) {
    const auto [begin, rows] = lora_.rows_of(slot);
    const Weight part = rows_of_weight(begin, rows);
    const Operand dropped =
        make_operand(apply_dropout(x.plain, lora_.dropout_of(slot)), recipe_->input_forms(part, /*trains=*/false));
    const at::Tensor w = recipe_->forward(dropped, part, dtype_, {}, {}, unused), update = lora_.product_of(slot);
    const at::Tensor g = factors.narrow(0, begin, rows);
    y.narrow(1, begin, rows).add_(scale_columns(w, g - 1)).add_(scale_columns(update, g));
    if (records_) kept_output_.push_back(update.add_(w));
  }
  return y;
}

at::Tensor LinearLayer::scale_gradient(const at::Tensor& dy, Gradients& gradients) {
  const at::Tensor& factors = lora_.factors();
  const std::vector<at::Tensor> outputs = std::exchange(kept_output_, {});
  if (!lora_.drops()) {
    const auto [scaled, d_factors] = scale_and_sum_columns(dy, factors, outputs.at(0));
    lora_.from_factor_gradients(d_factors, gradients);
    return scaled;
  }
  const at::Tensor scaled = scale_columns(dy, factors);
  at::Tensor d_factors = at::zeros_like(factors);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto [begin, rows] = lora_.rows_of(i);
    d_factors.narrow(0, begin, rows)
        .copy_(at::sum(dy.narrow(1, begin, rows).to(factors.scalar_type()).mul(outputs[i]), {0}));
  }
  lora_.from_factor_gradients(d_factors, gradients);
  return scaled;
}

void LinearLayer::add_dropped_products(const at::Tensor& dx, const at::Tensor& dy) {
  for (size_t slot = 0; slot < lora_.count(); ++slot) {
    const auto [begin, rows] = lora_.rows_of(slot);
    const Weight part = rows_of_weight(begin, rows);
    const at::Tensor d_part = scale_columns(dy.narrow(1, begin, rows), lora_.factors().narrow(0, begin, rows) - 1);
    add_dropout_(dx, recipe_->dgrad(make_operand(d_part, recipe_->gradient_forms(part)), part, {}, dtype_, {}),
                 lora_.dropout_of(slot));
  }
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
  const at::Tensor scaled = lora_.dora() ? scale_gradient(dy.plain, gradients) : dy.plain;
  if (lora_.active()) lora_.from_output_gradient(scaled, gradients);
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
  if (lora_.dora()) {
    if (!lora_.drops())
      return recipe_->dgrad(make_operand(scaled, recipe_->gradient_forms(weight_)), weight_, kept_, dtype_, addend);
    add_dropped_products(part, dy.plain);
  }
  return recipe_->dgrad(dy, weight_, kept_, dtype_, addend);
}

}  // namespace trireme
