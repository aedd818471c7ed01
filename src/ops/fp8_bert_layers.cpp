// The sub-layers of a post-norm block with FP8 products.
#include "capsule.h"
#include "fp8_products.h"
#include "post_norm_rows.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Fp8Matrix rows_of(const Fp8Operand& operand) { return {operand.data, operand.inverse}; }
Fp8Matrix columns_of(const Fp8Operand& operand) { return {operand.transposed, operand.inverse}; }

struct Fp8LinearBias : torch::autograd::Function<Fp8LinearBias> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, const Fp8Linear& scaling) {
    const Fp8Operand in = fp8_operand(x, scaling.x, *scaling.known),
                     w = fp8_operand(weight, scaling.weight, *scaling.known);
    ctx->save_for_backward({in.transposed, w.transposed});
    ctx->saved_data["scaling"] = to_capsule(scaling);
    return {fp8_product(rows_of(in), rows_of(w), x.scalar_type(), bias), x};
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto& scaling = from_capsule<Fp8Linear>(ctx->saved_data["scaling"]);
    const Fp8Operand dy = fp8_operand(gradients[0], scaling.dy, *scaling.known, /*want_sums=*/true);
    const at::ScalarType dtype = gradients[0].scalar_type();
    variable_list result(4);
    result[1] = fp8_product(columns_of(dy), {saved[0], scaling.x.inverse}, dtype);
    result[2] = dy.sums;
    if (ctx->needs_input_grad(0))
      result[0] = fp8_product(rows_of(dy), {saved[1], scaling.weight.inverse}, dtype, {}, {gradients[1]});
    return result;
  }
};

struct Fp8NormPlan {
  double eps;
  Dropout dropout;
  uint64_t stream;
  Fp8Linear linear, up;
  GeluForm form = GeluForm::kErf;
};

struct Fp8LinearAddNorm : torch::autograd::Function<Fp8LinearAddNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& residual, const at::Tensor& gamma, const at::Tensor& beta,
                            const Fp8NormPlan& plan) {
    const Fp8Linear& scaling = plan.linear;
    const Fp8Operand in = fp8_operand(x, scaling.x, *scaling.known),
                     w = fp8_operand(weight, scaling.weight, *scaling.known);
    const rows::PostNormed normed =
        rows::post_norm_forward(fp8_product(rows_of(in), rows_of(w), x.scalar_type()), bias, residual,
                                {gamma, beta, plan.eps}, plan.dropout, plan.stream);
    ctx->save_for_backward({in.transposed, w.transposed, gamma, normed.sum, normed.mean, normed.rstd});
    ctx->saved_data["plan"] = to_capsule(plan);
    return normed.y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto& plan = from_capsule<Fp8NormPlan>(ctx->saved_data["plan"]);
    const Fp8Linear& scaling = plan.linear;
    const rows::PostNormGradients d = rows::post_norm_backward(gradients[0], {{}, saved[3], saved[4], saved[5]},
                                                               saved[2], plan.dropout, plan.stream, /*want_bias=*/true);
    const Fp8Operand dy = fp8_operand(d.dx, scaling.dy, *scaling.known);
    const at::ScalarType dtype = d.dx.scalar_type();
    return {fp8_product(rows_of(dy), {saved[1], scaling.weight.inverse}, dtype),
            fp8_product(columns_of(dy), {saved[0], scaling.x.inverse}, dtype),
            d.d_bias,
            d.d_sum,
            d.d_gamma,
            d.d_beta,
            at::Tensor()};
  }
};

struct Fp8MlpAddNorm : torch::autograd::Function<Fp8MlpAddNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& up, const at::Tensor& up_bias,
                            const at::Tensor& down, const at::Tensor& down_bias, const at::Tensor& gamma,
                            const at::Tensor& beta, const Fp8NormPlan& plan) {
    const bool known = *plan.up.known;
    const at::ScalarType dtype = x.scalar_type();
    const Fp8Operand in = fp8_operand(x, plan.up.x, known), w_up = fp8_operand(up, plan.up.weight, known);
    const at::Tensor z = fp8_product(rows_of(in), rows_of(w_up), dtype);
    const Fp8Operand activated = fp8_gelu_operand(z, up_bias, plan.form, plan.linear.x, known),
                     w_down = fp8_operand(down, plan.linear.weight, known);
    const rows::PostNormed normed =
        rows::post_norm_forward(fp8_product(rows_of(activated), rows_of(w_down), dtype), down_bias, x,
                                {gamma, beta, plan.eps}, plan.dropout, plan.stream);
    ctx->save_for_backward({in.transposed, w_up.transposed, z, up_bias, activated.transposed, w_down.transposed, gamma,
                            normed.sum, normed.mean, normed.rstd});
    ctx->saved_data["plan"] = to_capsule(plan);
    return normed.y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto& plan = from_capsule<Fp8NormPlan>(ctx->saved_data["plan"]);
    const bool known = *plan.up.known;
    const Fp8Linear &up = plan.up, &down = plan.linear;
    const rows::PostNormGradients d = rows::post_norm_backward(gradients[0], {{}, saved[7], saved[8], saved[9]},
                                                               saved[6], plan.dropout, plan.stream, /*want_bias=*/true);
    const at::ScalarType dtype = d.dx.scalar_type();
    const Fp8Operand dy = fp8_operand(d.dx, down.dy, known);
    const at::Tensor d_activated = fp8_product(rows_of(dy), {saved[5], down.weight.inverse}, dtype);
    const Fp8Operand dz = fp8_gelu_gradient_operand(d_activated, saved[2], saved[3], plan.form, up.dy, known);
    return {fp8_product(rows_of(dz), {saved[1], up.weight.inverse}, dtype, {}, {d.d_sum}),
            fp8_product(columns_of(dz), {saved[0], up.x.inverse}, dtype),
            dz.sums,
            fp8_product(columns_of(dy), {saved[4], down.x.inverse}, dtype),
            d.d_bias,
            d.d_gamma,
            d.d_beta,
            at::Tensor()};
  }
};

}  // namespace

std::array<at::Tensor, 2> fp8_linear_bias(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                          const Fp8Linear& scaling) {
  rows::check_linear(x, weight, bias, "fp8_linear_bias");
  const variable_list out = Fp8LinearBias::apply(x.contiguous(), weight, bias, scaling);
  return {out[0], out[1]};
}

at::Tensor fp8_linear_add_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                               const at::Tensor& residual, const LayerNormWeights& norm, const Dropout& dropout,
                               uint64_t stream, const Fp8Linear& scaling) {
  rows::check_linear(x, weight, bias, "fp8_linear_add_norm");
  TRIREME_CHECK(residual.dim() == 2 && residual.size(0) == x.size(0) && residual.size(1) == weight.size(0),
                "fp8_linear_add_norm: residual ", residual.sizes(), ", x ", x.sizes(), ", weight ", weight.sizes());
  return Fp8LinearAddNorm::apply(x.contiguous(), weight, bias, residual, norm.gamma, norm.beta,
                                 Fp8NormPlan{norm.eps, dropout, stream, scaling, {}});
}

at::Tensor fp8_mlp_add_norm(const at::Tensor& x, const PostNormMlp& w, GeluForm form, const LayerNormWeights& norm,
                            const Dropout& dropout, uint64_t stream, const Fp8Linear& up, const Fp8Linear& down) {
  rows::check_linear(x, w.up, w.up_bias, "fp8_mlp_add_norm, up");
  TRIREME_CHECK(w.down.dim() == 2 && w.down.size(0) == x.size(1) && w.down.size(1) == w.up.size(0) &&
                    w.down_bias.numel() == w.down.size(0),
                "fp8_mlp_add_norm: down ", w.down.sizes(), ", its bias ", w.down_bias.sizes(), ", x ", x.sizes(),
                ", up ", w.up.sizes());
  return Fp8MlpAddNorm::apply(x.contiguous(), w.up, w.up_bias, w.down, w.down_bias, norm.gamma, norm.beta,
                              Fp8NormPlan{norm.eps, dropout, stream, down, up, form});
}

}  // namespace trireme
