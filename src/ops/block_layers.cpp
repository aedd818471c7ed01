#include "trireme/ops/block_layers.h"

#include "adapted_linear.h"
#include "as_rows.h"
#include "capsule.h"
#include "fused_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool any_trained(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.requires_grad(); });
}

// --- norm and linear -----------------------------------------------------------------------------

struct NormPlan {
  double eps;
  LinearPlan linear;
};

struct NormLinear : torch::autograd::Function<NormLinear> {
  // inputs: x, norm weight, matrix, pairs…
  static variable_list forward(AutogradContext* ctx, at::TensorList inputs, const NormPlan& plan) {
    const at::Tensor &x = inputs[0], &norm_weight = inputs[1], &matrix = inputs[2];
    const Weight weight = plan.linear.weight(matrix);
    const at::TensorList pairs = inputs.slice(3);
    rows::Normed normed =
        rows::norm_forward(as_rows(x), norm_weight, plan.eps, !weight.fp8() || !pairs.empty(), weight.fp8());
    std::vector<at::Tensor> products;
    if (!pairs.empty()) products = lora_products(normed.y.view(x.sizes()), pairs, plan.linear.lora);
    const at::Tensor y =
        forward_product({normed.y, normed.fp8}, weight, x.scalar_type(), plan.linear.lora, pairs, products);
    variable_list saved = inputs.vec();
    saved.push_back(normed.rstd);
    saved.insert(saved.end(), products.begin(), products.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["plan"] = to_capsule(plan);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = matrix.size(0);
    return {at::_unsafe_view(y, shape), x};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const NormPlan& plan = from_capsule<NormPlan>(ctx->saved_data["plan"]);
    const size_t num_pairs = plan.linear.num_pairs(), n = num_pairs / 2;
    const at::TensorList all(saved);
    const at::Tensor &x = saved[0], &norm_weight = saved[1], &rstd = saved[3 + num_pairs];
    const at::TensorList pairs = all.slice(3, num_pairs), products = all.slice(4 + num_pairs, n);
    const Weight weight = plan.linear.weight(saved[2]);
    const at::Tensor dy = as_rows(gradients[0]);

    variable_list result(4 + num_pairs);
    const bool weight_trained = ctx->needs_input_grad(2);
    const std::vector<bool> pairs_wanted = wanted(ctx, 3, num_pairs);
    const LoraProductGradients of_products =
        lora_product_gradients(dy, x, pairs, products, plan.linear.lora, pairs_wanted);
    LoraGradients adapters;
    if (weight_trained || num_pairs > 0) {
      const at::Tensor normed = rows::norm_again(as_rows(x), rstd, norm_weight, plan.eps);
      if (weight_trained) result[2] = at::mm(dy.t(), normed);
      adapters = lora_backward(of_products, normed.view(x.sizes()), pairs, plan.linear.lora, pairs_wanted, true);
      put(result, 3, adapters.pairs);
    }
    const at::Tensor dn = input_gradient(dy, weight, adapters.dx_part);
    const at::Tensor residual = gradients[1].defined() ? as_rows(gradients[1]) : at::Tensor();
    const at::Tensor dx = rows::norm_backward(dn, as_rows(x), rstd, norm_weight, residual,
                                              ctx->needs_input_grad(1) ? &result[1] : nullptr);
    result[0] = dx.view(x.sizes());
    return result;
  }
};

// --- linear and residual -------------------------------------------------------------------------

struct LinearAdd : torch::autograd::Function<LinearAdd> {
  // inputs: x, residual, matrix, pairs…
  static at::Tensor forward(AutogradContext* ctx, at::TensorList inputs, const LinearPlan& plan) {
    const at::Tensor &x = inputs[0], &residual = inputs[1], &matrix = inputs[2];
    const Weight weight = plan.weight(matrix);
    const at::TensorList pairs = inputs.slice(3);
    const at::Tensor x_TI = as_rows(x);
    const std::vector<at::Tensor> products = lora_products(x, pairs, plan.lora);
    const at::Tensor y = forward_product({x_TI, weight.fp8() ? quantise_rows(x_TI) : Fp8Rows{}}, weight,
                                         x.scalar_type(), plan.lora, pairs, products, as_rows(residual));
    variable_list saved = {matrix.requires_grad() || any_trained(pairs) ? x : at::Tensor(), matrix};
    saved.insert(saved.end(), pairs.begin(), pairs.end());
    saved.insert(saved.end(), products.begin(), products.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["plan"] = to_capsule(plan);
    return at::_unsafe_view(y, residual.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const LinearPlan& plan = from_capsule<LinearPlan>(ctx->saved_data["plan"]);
    const size_t num_pairs = plan.num_pairs();
    const at::TensorList all(saved);
    const at::Tensor& x = saved[0];
    const Weight weight = plan.weight(saved[1]);
    const at::TensorList pairs = all.slice(2, num_pairs), products = all.slice(2 + num_pairs, num_pairs / 2);
    const at::Tensor dy = as_rows(gradients[0]);

    variable_list result(4 + num_pairs);
    result[1] = gradients[0];
    if (ctx->needs_input_grad(2)) result[2] = at::mm(dy.t(), as_rows(x));
    const std::vector<bool> pairs_wanted = wanted(ctx, 3, num_pairs);
    const LoraGradients adapters =
        lora_backward(lora_product_gradients(dy, x, pairs, products, plan.lora, pairs_wanted), x, pairs, plan.lora,
                      pairs_wanted, ctx->needs_input_grad(0));
    put(result, 3, adapters.pairs);
    if (ctx->needs_input_grad(0)) {
      std::vector<int64_t> shape = gradients[0].sizes().vec();
      shape.back() = weight.matrix.size(1);
      result[0] = input_gradient(dy, weight, adapters.dx_part).view(shape);
    }
    return result;
  }
};

}  // namespace

std::array<at::Tensor, 2> norm_linear(const at::Tensor& x, const at::Tensor& norm_weight, double eps,
                                      const Weight& weight, const std::vector<LoraAdapter>& adapters,
                                      const LoraSettings& lora) {
  check_linear(x, weight, "norm_linear");
  std::vector<at::Tensor> inputs = {x.contiguous(), norm_weight};
  const NormPlan plan{eps, make_plan(weight, adapters, lora, inputs)};
  const variable_list out = NormLinear::apply(at::TensorList(inputs), plan);
  return {out[0], out[1]};
}

at::Tensor linear_add(const at::Tensor& x, const at::Tensor& residual, const Weight& weight,
                      const std::vector<LoraAdapter>& adapters, const LoraSettings& lora) {
  check_linear(x, weight, "linear_add");
  std::vector<at::Tensor> inputs = {x.contiguous(), residual};
  const LinearPlan plan = make_plan(weight, adapters, lora, inputs);
  return LinearAdd::apply(at::TensorList(inputs), plan);
}

}  // namespace trireme
