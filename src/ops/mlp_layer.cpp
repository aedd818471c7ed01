// The MLP of block_layers.h.
#include "trireme/ops/block_layers.h"

#include "adapted_linear.h"
#include "as_rows.h"
#include "capsule.h"
#include "fused_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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
    const Weight gate_up_weight = plan.gate_up.weight(inputs[2]), down_weight = plan.down.weight(inputs[3 + up_pairs]);
    const at::TensorList gate_up_pairs = inputs.slice(3, up_pairs), down_pairs = inputs.slice(4 + up_pairs);
    std::vector<int64_t> wide = h.sizes().vec();

    const rows::Normed normed =
        rows::norm_forward(h_TD, inputs[1], plan.eps, !gate_up_weight.fp8() || up_pairs > 0, gate_up_weight.fp8());
    std::vector<at::Tensor> products;
    if (up_pairs > 0) products = lora_products(normed.y.view(wide), gate_up_pairs, plan.gate_up.lora);
    const at::Tensor gate_up = forward_product({normed.y, normed.fp8}, gate_up_weight, h.scalar_type(),
                                               plan.gate_up.lora, gate_up_pairs, products);

    const bool keep_fp8 = down_weight.fp8() && !plan.recompute;
    const rows::Activated activated =
        rows::swiglu_forward(gate_up, !down_weight.fp8() || !down_pairs.empty(), down_weight.fp8(), keep_fp8);
    std::vector<at::Tensor> products_down;
    if (!down_pairs.empty()) {
      wide.back() = down_weight.matrix.size(1);
      products_down = lora_products(activated.y.view(wide), down_pairs, plan.down.lora);
    }
    const at::Tensor y = forward_product({activated.y, activated.fp8}, down_weight, h.scalar_type(), plan.down.lora,
                                         down_pairs, products_down, h_TD);
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
    const Weight gate_up_weight = plan.gate_up.weight(saved[2]), down_weight = plan.down.weight(saved[down_at]);
    const at::TensorList pairs_up = all.slice(3, up_pairs), pairs_down = all.slice(down_at + 1, down_pairs),
                         products_up = all.slice(rstd_at + 1, up_pairs / 2),
                         products_down = all.slice(rstd_at + 1 + up_pairs / 2, down_pairs / 2);
    const size_t kept_at = rstd_at + 1 + up_pairs / 2 + down_pairs / 2;
    const at::Tensor h_TD = as_rows(h), dy = as_rows(gradients[0]);
    const at::ScalarType dtype = h.scalar_type();
    const bool gate_up_trained = ctx->needs_input_grad(2), down_trained = ctx->needs_input_grad(down_at);
    std::vector<int64_t> wide = h.sizes().vec();
    variable_list result(2 + down_at + down_pairs);  // inputs, plan

    at::Tensor normed;
    if (gate_up_trained || up_pairs > 0 || (plan.recompute && !gate_up_weight.fp8()))
      normed = rows::norm_again(h_TD, rstd, norm_weight, plan.eps);
    at::Tensor gate_up = saved[kept_at];
    Fp8Rows kept{saved[kept_at + 1], saved[kept_at + 2]};
    if (plan.recompute) {
      Fp8Rows fp8;
      if (gate_up_weight.fp8()) fp8 = rows::norm_forward(h_TD, norm_weight, plan.eps, false, true).fp8;
      gate_up = forward_product({normed, fp8}, gate_up_weight, dtype, plan.gate_up.lora, pairs_up, products_up);
    }

    LoraGradients adapters_down;
    if (down_trained || down_pairs > 0) {
      const at::Tensor activated =
          rows::swiglu_forward(kept.defined() ? dequantise_rows(kept, dtype) : gate_up, true, false, false).y;
      if (down_trained) result[down_at] = at::mm(dy.t(), activated);
      wide.back() = activated.size(1);
      const at::Tensor activated_BSI = activated.view(wide);
      const std::vector<bool> down_wanted = wanted(ctx, down_at + 1, down_pairs);
      adapters_down = lora_backward(
          lora_product_gradients(dy, activated_BSI, pairs_down, products_down, plan.down.lora, down_wanted),
          activated_BSI, pairs_down, plan.down.lora, down_wanted, true);
      put(result, down_at + 1, adapters_down.pairs);
    }
    at::Tensor d_activated = input_gradient(dy, down_weight, adapters_down.dx_part);
    const rows::Gradient d_gate_up =
        rows::swiglu_backward(d_activated, gate_up, kept, !gate_up_weight.fp8() || up_pairs > 0, gate_up_weight.fp8());
    d_activated = gate_up = adapters_down.dx_part = at::Tensor();

    if (gate_up_trained) result[2] = at::mm(d_gate_up.plain.t(), normed);
    LoraGradients adapters_up;
    if (up_pairs > 0) {
      const at::Tensor normed_BSD = normed.view(h.sizes());
      const std::vector<bool> up_wanted = wanted(ctx, 3, up_pairs);
      adapters_up = lora_backward(
          lora_product_gradients(d_gate_up.plain, normed_BSD, pairs_up, products_up, plan.gate_up.lora, up_wanted),
          normed_BSD, pairs_up, plan.gate_up.lora, up_wanted, true);
      put(result, 3, adapters_up.pairs);
    }
    const at::Tensor dn = input_gradient(d_gate_up.plain, d_gate_up.fp8, gate_up_weight, dtype, adapters_up.dx_part);
    result[0] = rows::norm_backward(dn, h_TD, rstd, norm_weight, dy, ctx->needs_input_grad(1) ? &result[1] : nullptr)
                    .view(h.sizes());
    return result;
  }
};

}  // namespace

at::Tensor mlp_add(const at::Tensor& h, const MlpWeights& weights, double eps, const LoraSettings& lora,
                   bool recompute_gate_up) {
  check_linear(h, weights.gate_up, "mlp_add");
  std::vector<at::Tensor> inputs = {h.contiguous(), weights.norm};
  MlpPlan plan{eps, recompute_gate_up, {}, {}};
  plan.gate_up = make_plan(weights.gate_up, weights.gate_up_adapters, lora, inputs);
  plan.down = make_plan(weights.down, weights.down_adapters, lora, inputs);
  return MlpAdd::apply(at::TensorList(inputs), plan);
}

}  // namespace trireme
