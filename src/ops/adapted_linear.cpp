#include "adapted_linear.h"

#include "trireme/base/error.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme {

namespace {

at::Tensor plain_product(const at::Tensor& a, const at::Tensor& b, const Addend& addend) {
  if (addend.overwritten) return addend.sum.addmm_(a, b);
  const at::Tensor y = at::mm(a, b);
  return addend.sum.defined() ? y.add_(addend.sum) : y;
}

/// x W^T (+ addend).
at::Tensor own_product(const LinearInput& x, const Weight& weight, at::ScalarType dtype, const Addend& addend) {
  return weight.fp8() ? fp8_product(x.fp8, weight, dtype, addend) : plain_product(x.plain, weight.matrix.t(), addend);
}

}  // namespace

LinearPlan make_plan(const Weight& weight, const std::vector<LoraAdapter>& adapters, const LoraSettings& lora,
                     std::vector<at::Tensor>& inputs) {
  inputs.push_back(weight.matrix);
  LinearPlan plan{weight.inverse_scale, {}};
  plan.lora = make_lora_plan(adapters, weight.matrix, lora.scale, lora.dropout, inputs);
  return plan;
}

void check_linear(const at::Tensor& x, const Weight& weight, const char* what) {
  TRIREME_CHECK(weight.matrix.dim() == 2 && x.size(-1) == weight.matrix.size(1), what, ": input of ", x.size(-1),
                " columns, weight ", weight.matrix.sizes());
  TRIREME_CHECK(weight.fp8() || x.scalar_type() == weight.matrix.scalar_type(), what, ": x is ", x.scalar_type(),
                ", weight ", weight.matrix.scalar_type());
}

at::Tensor forward_product(const LinearInput& x, const Weight& weight, at::ScalarType dtype, const LoraPlan& lora,
                           at::TensorList pairs, at::TensorList products, const at::Tensor& residual_TD) {
  if (products.empty()) return own_product(x, weight, dtype, {residual_TD});
  if (!residual_TD.defined())
    return own_product(x, weight, dtype, {lora_part(products, pairs, lora, weight.matrix.size(0)), true});
  const at::Tensor y = own_product(x, weight, dtype, {residual_TD});
  lora_add(y, products, pairs, lora);
  return y;
}

at::Tensor input_gradient(const at::Tensor& dy, const Fp8Rows& dy_fp8, const Weight& weight, at::ScalarType dtype,
                          const at::Tensor& part) {
  const Addend addend{part, part.defined()};
  return weight.fp8() ? fp8_input_gradient(dy_fp8, weight, dtype, addend) : plain_product(dy, weight.matrix, addend);
}

at::Tensor input_gradient(const at::Tensor& dy, const Weight& weight, const at::Tensor& part) {
  return input_gradient(dy, weight.fp8() ? quantise_rows(dy) : Fp8Rows{}, weight, dy.scalar_type(), part);
}

std::vector<bool> wanted(torch::autograd::AutogradContext* ctx, size_t first, size_t count) {
  std::vector<bool> result;
  for (size_t i = 0; i < count; ++i) result.push_back(ctx->needs_input_grad(first + i));
  return result;
}

void put(torch::autograd::variable_list& result, size_t first, const std::vector<at::Tensor>& values) {
  std::copy(values.begin(), values.end(), result.begin() + static_cast<std::ptrdiff_t>(first));
}

}  // namespace trireme
