#include "trireme/ops/block_layers.h"

#include "as_rows.h"
#include "capsule.h"
#include "fused_rows.h"
#include "lora_products.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// An input of a product: plain, FP8, or both (adapters read the plain one).
struct Input {
  at::Tensor plain;
  Fp8Rows fp8;
};

at::Tensor plain_product(const at::Tensor& a, const at::Tensor& b, const Addend& addend) {
  if (addend.overwritten) return addend.sum.addmm_(a, b);
  const at::Tensor y = at::mm(a, b);
  return addend.sum.defined() ? y.add_(addend.sum) : y;
}

/// x W^T (+ addend).
at::Tensor forward_product(const Input& x, const Weight& weight, at::ScalarType dtype, const Addend& addend) {
  return weight.fp8() ? fp8_product(x.fp8, weight, dtype, addend) : plain_product(x.plain, weight.matrix.t(), addend);
}

/// x W^T + the adapters' part (+ residual), `products` from lora_products(). The layer's own product comes last where it can: it reads what it
/// adds to while the matrix engine is at work, and a pass over y of its own is saved.
at::Tensor forward_product(const Input& x, const Weight& weight, at::ScalarType dtype, const LoraPlan& lora, at::TensorList pairs,
                           at::TensorList products, const at::Tensor& residual_TD = {}) {
  if (products.empty()) return forward_product(x, weight, dtype, {residual_TD});
  if (!residual_TD.defined()) return forward_product(x, weight, dtype, {lora_part(products, pairs, lora, weight.matrix.size(0)), true});
  const at::Tensor y = forward_product(x, weight, dtype, {residual_TD});
  lora_add(y, products, pairs, lora);
  return y;
}

/// dy W, over the adapters' part where there is one.
at::Tensor input_gradient(const at::Tensor& dy, const Fp8Rows& dy_fp8, const Weight& weight, at::ScalarType dtype, const at::Tensor& part) {
  const Addend addend{part, part.defined()};
  return weight.fp8() ? fp8_input_gradient(dy_fp8, weight, dtype, addend) : plain_product(dy, weight.matrix, addend);
}

/// dy of a layer whose gradient no kernel has quantised yet.
at::Tensor input_gradient(const at::Tensor& dy, const Weight& weight, const at::Tensor& part) {
  return input_gradient(dy, weight.fp8() ? quantise_rows(dy) : Fp8Rows{}, weight, dy.scalar_type(), part);
}

/// Everything about a linear layer but the tensors that autograd must know.
struct LinearPlan {
  at::Tensor inverse_scale;  // of an FP8 weight; constant
  LoraPlan lora;
  size_t num_pairs() const { return 2 * lora.places.size(); }
  Weight weight(const at::Tensor& matrix) const { return {matrix, inverse_scale}; }
};

LinearPlan make_plan(const Weight& weight, const std::vector<LoraAdapter>& adapters,
                     const LoraSettings& lora, std::vector<at::Tensor>& inputs) {
  inputs.push_back(weight.matrix);
  LinearPlan plan{weight.inverse_scale, {}};
  plan.lora = make_lora_plan(adapters, weight.matrix, lora.scale, lora.dropout, inputs);
  return plan;
}

bool any_trained(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& t) { return t.requires_grad(); });
}

std::vector<bool> wanted(AutogradContext* ctx, size_t first, size_t count) {
  std::vector<bool> result;
  for (size_t i = 0; i < count; ++i) result.push_back(ctx->needs_input_grad(first + i));
  return result;
}

void put(variable_list& result, size_t first, const std::vector<at::Tensor>& values) {
  std::copy(values.begin(), values.end(), result.begin() + static_cast<std::ptrdiff_t>(first));
}

void check_linear(const at::Tensor& x, const Weight& weight, const char* what) {
  TRIREME_CHECK(weight.matrix.dim() == 2 && x.size(-1) == weight.matrix.size(1), what,
                ": input of ", x.size(-1), " columns, weight ", weight.matrix.sizes());
  TRIREME_CHECK(weight.fp8() || x.scalar_type() == weight.matrix.scalar_type(), what, ": x is ",
                x.scalar_type(), ", weight ", weight.matrix.scalar_type());
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
    rows::Normed normed = rows::norm_forward(as_rows(x), norm_weight, plan.eps,
                                             !weight.fp8() || !pairs.empty(), weight.fp8());
    std::vector<at::Tensor> products;
    if (!pairs.empty()) products = lora_products(normed.y.view(x.sizes()), pairs, plan.linear.lora);
    const at::Tensor y = forward_product({normed.y, normed.fp8}, weight, x.scalar_type(), plan.linear.lora, pairs, products);
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
    const LoraProductGradients of_products = lora_product_gradients(dy, x, pairs, products, plan.linear.lora, pairs_wanted);
    LoraGradients adapters;
    if (weight_trained || num_pairs > 0) {
      const at::Tensor normed = rows::norm_again(as_rows(x), rstd, norm_weight, plan.eps);
      if (weight_trained) result[2] = at::mm(dy.t(), normed);
      adapters = lora_backward(of_products, normed.view(x.sizes()), pairs, plan.linear.lora, pairs_wanted, true);
      put(result, 3, adapters.pairs);
    }
    const at::Tensor dn = input_gradient(dy, weight, adapters.dx_part);
    const at::Tensor residual = gradients[1].defined() ? as_rows(gradients[1]) : at::Tensor();
    const at::Tensor dx =
        rows::norm_backward(dn, as_rows(x), rstd, norm_weight, residual,
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
    const at::Tensor y = forward_product({x_TI, weight.fp8() ? quantise_rows(x_TI) : Fp8Rows{}}, weight, x.scalar_type(), plan.lora, pairs,
                                         products, as_rows(residual));
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
    const at::TensorList pairs = all.slice(2, num_pairs),
                         products = all.slice(2 + num_pairs, num_pairs / 2);
    const at::Tensor dy = as_rows(gradients[0]);

    variable_list result(4 + num_pairs);
    result[1] = gradients[0];
    if (ctx->needs_input_grad(2)) result[2] = at::mm(dy.t(), as_rows(x));
    const std::vector<bool> pairs_wanted = wanted(ctx, 3, num_pairs);
    const LoraGradients adapters = lora_backward(lora_product_gradients(dy, x, pairs, products, plan.lora, pairs_wanted), x, pairs, plan.lora,
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

// --- MLP -----------------------------------------------------------------------------------------

struct MlpPlan {
  double eps;
  bool recompute;
  LinearPlan gate_up, down;
};

struct MlpAdd : torch::autograd::Function<MlpAdd> {
  // inputs: h, norm weight, gate_up matrix, its pairs…, down matrix, its pairs…
  // saved:  inputs, rstd, products of gate_up, products of down, gate_up as kept (plain; data, scales)
  static at::Tensor forward(AutogradContext* ctx, at::TensorList inputs, const MlpPlan& plan) {
    const at::Tensor& h = inputs[0];
    const at::Tensor h_TD = as_rows(h);
    const size_t up_pairs = plan.gate_up.num_pairs();
    const Weight gate_up_weight = plan.gate_up.weight(inputs[2]),
                 down_weight = plan.down.weight(inputs[3 + up_pairs]);
    const at::TensorList gate_up_pairs = inputs.slice(3, up_pairs),
                         down_pairs = inputs.slice(4 + up_pairs);
    std::vector<int64_t> wide = h.sizes().vec();

    const rows::Normed normed =
        rows::norm_forward(h_TD, inputs[1], plan.eps, !gate_up_weight.fp8() || up_pairs > 0,
                           gate_up_weight.fp8());
    std::vector<at::Tensor> products;
    if (up_pairs > 0) products = lora_products(normed.y.view(wide), gate_up_pairs, plan.gate_up.lora);
    const at::Tensor gate_up =
        forward_product({normed.y, normed.fp8}, gate_up_weight, h.scalar_type(), plan.gate_up.lora, gate_up_pairs, products);

    const bool keep_fp8 = down_weight.fp8() && !plan.recompute;
    const rows::Activated activated =
        rows::swiglu_forward(gate_up, !down_weight.fp8() || !down_pairs.empty(), down_weight.fp8(),
                             keep_fp8);
    std::vector<at::Tensor> products_down;
    if (!down_pairs.empty()) {
      wide.back() = down_weight.matrix.size(1);
      products_down = lora_products(activated.y.view(wide), down_pairs, plan.down.lora);
    }
    const at::Tensor y =
        forward_product({activated.y, activated.fp8}, down_weight, h.scalar_type(), plan.down.lora, down_pairs, products_down, h_TD);
    products.insert(products.end(), products_down.begin(), products_down.end());

    variable_list saved = inputs.vec();
    saved.push_back(normed.rstd);
    saved.insert(saved.end(), products.begin(), products.end());
    saved.push_back(plan.recompute || keep_fp8 ? at::Tensor() : gate_up);
    saved.push_back(activated.saved.data);
    saved.push_back(activated.saved.inverse_scale);
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["plan"] = to_capsule(plan);
    return at::_unsafe_view(y, h.sizes());
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const MlpPlan& plan = from_capsule<MlpPlan>(ctx->saved_data["plan"]);
    const at::TensorList all(saved);
    const size_t up_pairs = plan.gate_up.num_pairs(), down_pairs = plan.down.num_pairs();
    const size_t down_at = 3 + up_pairs, rstd_at = down_at + 1 + down_pairs;
    const at::Tensor &h = saved[0], &norm_weight = saved[1], &rstd = saved[rstd_at];
    const Weight gate_up_weight = plan.gate_up.weight(saved[2]),
                 down_weight = plan.down.weight(saved[down_at]);
    const at::TensorList pairs_up = all.slice(3, up_pairs),
                         pairs_down = all.slice(down_at + 1, down_pairs),
                         products_up = all.slice(rstd_at + 1, up_pairs / 2),
                         products_down = all.slice(rstd_at + 1 + up_pairs / 2, down_pairs / 2);
    const size_t kept_at = rstd_at + 1 + up_pairs / 2 + down_pairs / 2;
    const at::Tensor h_TD = as_rows(h), dy = as_rows(gradients[0]);
    const at::ScalarType dtype = h.scalar_type();
    const bool gate_up_trained = ctx->needs_input_grad(2),
               down_trained = ctx->needs_input_grad(down_at);
    std::vector<int64_t> wide = h.sizes().vec();
    variable_list result(2 + down_at + down_pairs);  // inputs, plan

    at::Tensor normed;
    if (gate_up_trained || up_pairs > 0 || (plan.recompute && !gate_up_weight.fp8()))
      normed = rows::norm_again(h_TD, rstd, norm_weight, plan.eps);
    at::Tensor gate_up = saved[kept_at];
    Fp8Rows kept{saved[kept_at + 1], saved[kept_at + 2]};
    if (plan.recompute) {
      Fp8Rows fp8;
      if (gate_up_weight.fp8())
        fp8 = rows::norm_forward(h_TD, norm_weight, plan.eps, false, true).fp8;
      gate_up = forward_product({normed, fp8}, gate_up_weight, dtype, plan.gate_up.lora, pairs_up, products_up);
    }

    LoraGradients adapters_down;
    if (down_trained || down_pairs > 0) {
      const at::Tensor activated =
          rows::swiglu_forward(kept.defined() ? dequantise_rows(kept, dtype) : gate_up, true, false,
                               false)
              .y;
      if (down_trained) result[down_at] = at::mm(dy.t(), activated);
      wide.back() = activated.size(1);
      const at::Tensor activated_BSI = activated.view(wide);
      const std::vector<bool> down_wanted = wanted(ctx, down_at + 1, down_pairs);
      adapters_down = lora_backward(lora_product_gradients(dy, activated_BSI, pairs_down, products_down, plan.down.lora, down_wanted),
                                    activated_BSI, pairs_down, plan.down.lora, down_wanted, true);
      put(result, down_at + 1, adapters_down.pairs);
    }
    at::Tensor d_activated = input_gradient(dy, down_weight, adapters_down.dx_part);
    const rows::Gradient d_gate_up = rows::swiglu_backward(
        d_activated, gate_up, kept, !gate_up_weight.fp8() || up_pairs > 0, gate_up_weight.fp8());
    d_activated = gate_up = adapters_down.dx_part = at::Tensor();

    if (gate_up_trained) result[2] = at::mm(d_gate_up.plain.t(), normed);
    LoraGradients adapters_up;
    if (up_pairs > 0) {
      const at::Tensor normed_BSD = normed.view(h.sizes());
      const std::vector<bool> up_wanted = wanted(ctx, 3, up_pairs);
      adapters_up = lora_backward(lora_product_gradients(d_gate_up.plain, normed_BSD, pairs_up, products_up, plan.gate_up.lora, up_wanted),
                                  normed_BSD, pairs_up, plan.gate_up.lora, up_wanted, true);
      put(result, 3, adapters_up.pairs);
    }
    const at::Tensor dn = input_gradient(d_gate_up.plain, d_gate_up.fp8, gate_up_weight, dtype, adapters_up.dx_part);
    result[0] = rows::norm_backward(dn, h_TD, rstd, norm_weight, dy,
                                    ctx->needs_input_grad(1) ? &result[1] : nullptr)
                    .view(h.sizes());
    return result;
  }
};

}  // namespace

std::array<at::Tensor, 2> norm_linear(const at::Tensor& x, const at::Tensor& norm_weight, double eps,
                                      const Weight& weight,
                                      const std::vector<LoraAdapter>& adapters,
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

at::Tensor mlp_add(const at::Tensor& h, const MlpWeights& weights, double eps,
                   const LoraSettings& lora, bool recompute_gate_up) {
  check_linear(h, weights.gate_up, "mlp_add");
  std::vector<at::Tensor> inputs = {h.contiguous(), weights.norm};
  MlpPlan plan{eps, recompute_gate_up, {}, {}};
  plan.gate_up = make_plan(weights.gate_up, weights.gate_up_adapters, lora, inputs);
  plan.down = make_plan(weights.down, weights.down_adapters, lora, inputs);
  return MlpAdd::apply(at::TensorList(inputs), plan);
}

}  // namespace trireme
