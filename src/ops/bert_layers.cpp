#include "trireme/ops/bert_layers.h"

#include "capsule.h"
#include "post_norm_rows.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Column sums, fp32 inside (fp64 for fp64), rounded once.
at::Tensor sum_rows(const at::Tensor& dy) {
  const at::ScalarType type = dy.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::sum(dy, {0}, false, type).to(dy.scalar_type());
}

/// dy W, plus what reached x on another way. That gradient belongs to this node alone (a residual has one
/// user), so the product adds to it in place; one that autograd lent in another form is copied.
at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& weight, const at::Tensor& other) {
  if (!other.defined()) return at::mm(dy, weight);
  if (other.is_non_overlapping_and_dense() && other.is_contiguous()) return at::Tensor(other).addmm_(dy, weight);
  return at::addmm(other, dy, weight);
}

struct LinearBias : torch::autograd::Function<LinearBias> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias) {
    ctx->save_for_backward({x, weight});
    return {at::addmm(bias, x, weight.t()), x};
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor dy = gradients[0].contiguous();
    variable_list result(3);
    if (ctx->needs_input_grad(1)) result[1] = at::mm(dy.t(), saved[0]);
    if (ctx->needs_input_grad(2)) result[2] = sum_rows(dy);
    if (ctx->needs_input_grad(0)) result[0] = input_gradient(dy, saved[1], gradients[1]);
    return result;
  }
};

struct LinearGelu : torch::autograd::Function<LinearGelu> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, int64_t form) {
    const at::Tensor z = at::mm(x, weight.t());
    ctx->save_for_backward({x, weight, bias, z});
    ctx->saved_data["form"] = form;
    return {rows::gelu_forward(z, bias, static_cast<GeluForm>(form)), x};
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto form = static_cast<GeluForm>(ctx->saved_data["form"].toInt());
    const auto [dz, d_bias] = rows::gelu_backward(gradients[0], saved[3], saved[2], form);
    variable_list result(4);
    result[2] = d_bias;
    if (ctx->needs_input_grad(1)) result[1] = at::mm(dz.t(), saved[0]);
    if (ctx->needs_input_grad(0)) result[0] = input_gradient(dz, saved[1], gradients[1]);
    return result;
  }
};

struct PostNormPlan {
  double eps;
  Dropout dropout;
  uint64_t stream;
};

struct LinearAddNorm : torch::autograd::Function<LinearAddNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& residual, const at::Tensor& gamma, const at::Tensor& beta,
                            const PostNormPlan& plan) {
    const rows::PostNormed normed = rows::post_norm_forward(at::mm(x, weight.t()), bias, residual,
                                                            {gamma, beta, plan.eps}, plan.dropout, plan.stream);
    ctx->save_for_backward({x, weight, gamma, normed.sum, normed.mean, normed.rstd});
    ctx->saved_data["plan"] = to_capsule(plan);
    return normed.y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const PostNormPlan& plan = from_capsule<PostNormPlan>(ctx->saved_data["plan"]);
    const rows::PostNormGradients d = rows::post_norm_backward(gradients[0], {{}, saved[3], saved[4], saved[5]},
                                                               saved[2], plan.dropout, plan.stream, /*want_bias=*/true);
    variable_list result(7);
    if (ctx->needs_input_grad(0)) result[0] = at::mm(d.dx, saved[1]);
    if (ctx->needs_input_grad(1)) result[1] = at::mm(d.dx.t(), saved[0]);
    result[2] = d.d_bias;
    result[3] = d.d_sum;
    result[4] = d.d_gamma;
    result[5] = d.d_beta;
    return result;
  }
};

struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta,
                            double eps) {
    const rows::PostNormed normed = rows::post_norm_forward(x, {}, {}, {gamma, beta, eps}, {}, 0);
    ctx->save_for_backward({gamma, normed.sum, normed.mean, normed.rstd});
    return normed.y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const rows::PostNormGradients d = rows::post_norm_backward(gradients[0], {{}, saved[1], saved[2], saved[3]},
                                                               saved[0], {}, 0, /*want_bias=*/false);
    return {d.d_sum, d.d_gamma, d.d_beta, at::Tensor()};
  }
};

}  // namespace

std::array<at::Tensor, 2> linear_bias(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  rows::check_linear(x, weight, bias, "linear_bias");
  const variable_list out = LinearBias::apply(x.contiguous(), weight, bias);
  return {out[0], out[1]};
}

std::array<at::Tensor, 2> linear_gelu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                      GeluForm form) {
  rows::check_linear(x, weight, bias, "linear_gelu");
  const variable_list out = LinearGelu::apply(x.contiguous(), weight, bias, static_cast<int64_t>(form));
  return {out[0], out[1]};
}

at::Tensor linear_add_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                           const at::Tensor& residual, const LayerNormWeights& norm, const Dropout& dropout,
                           uint64_t stream) {
  rows::check_linear(x, weight, bias, "linear_add_norm");
  TRIREME_CHECK(residual.dim() == 2 && residual.size(0) == x.size(0) && residual.size(1) == weight.size(0),
                "linear_add_norm: residual ", residual.sizes(), ", x ", x.sizes(), ", weight ", weight.sizes());
  return LinearAddNorm::apply(x.contiguous(), weight, bias, residual, norm.gamma, norm.beta,
                              PostNormPlan{norm.eps, dropout, stream});
}

at::Tensor layer_norm(const at::Tensor& x, const LayerNormWeights& norm) {
  TRIREME_CHECK(x.dim() == 2 && x.size(1) == norm.gamma.size(0), "layer_norm: x ", x.sizes(), ", gamma ",
                norm.gamma.sizes());
  return LayerNorm::apply(x.contiguous(), norm.gamma, norm.beta, norm.eps);
}

}  // namespace trireme
