#include "trireme/ops/norm.h"

#include "fp8_bridge.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace trireme {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType accumulate_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct NormForward {
  at::Tensor y, rstd;
};

NormForward forward_plain(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor x32 = x.to(accumulate_type(x));
  const at::Tensor rstd = at::rsqrt(x32.square().mean(-1, true).add_(eps));
  return {x32.mul(rstd).to(x.scalar_type()).mul_(weight), rstd};
}

variable_list backward_plain(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                             const at::Tensor& weight, bool need_x, bool need_weight) {
  const at::ScalarType type = accumulate_type(x);
  const at::Tensor normed = x.to(type).mul(rstd);
  at::Tensor dx, dw;
  if (need_weight) {
    // The forward multiplied the weight with the rounded value.
    const at::Tensor rounded = normed.to(x.scalar_type()).to(type);
    dw = dy.to(type).mul(rounded).reshape({-1, x.size(-1)}).sum(0).to(weight.scalar_type());
  }
  if (need_x) {
    const at::Tensor dn = dy.mul(weight).to(type);
    const at::Tensor mean = dn.mul(normed).mean(-1, true);
    dx = dn.sub(normed.mul(mean)).mul_(rstd).to(x.scalar_type());
  }
  return {dx, dw};
}

// The places where a kernel takes over from the plain composition.
NormForward forward_dispatch(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (bridge::has_norm_kernels(x)) {
    const rows::Normed normed = bridge::norm_forward(x.view({-1, x.size(-1)}), weight, eps, /*want_y=*/true, false);
    return {normed.y.view(x.sizes()), normed.rstd};
  }
  if (x.is_cuda()) {
    auto [y, rstd] = at::_fused_rms_norm(x, {x.size(-1)}, weight, eps);
    return {y, rstd};
  }
  return forward_plain(x, weight, eps);
}

variable_list backward_dispatch(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                                const at::Tensor& weight, bool need_x, bool need_weight) {
  if (bridge::has_norm_kernels(x)) {
    at::Tensor dw;
    const at::Tensor dx = bridge::norm_backward(dy.reshape({-1, x.size(-1)}), x.view({-1, x.size(-1)}), rstd, weight,
                                                at::Tensor(), need_weight ? &dw : nullptr);
    return {dx.view(x.sizes()), dw};
  }
  if (x.is_cuda()) {
    auto [dx, dw] = at::_fused_rms_norm_backward(dy.contiguous(), x, {x.size(-1)}, rstd, weight, {need_x, need_weight});
    return {dx, dw};
  }
  return backward_plain(dy, x, rstd, weight, need_x, need_weight);
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps) {
    auto [y, rstd] = forward_dispatch(x, weight, eps);
    ctx->save_for_backward({x, weight, rstd});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list result = backward_dispatch(gradients[0], saved[0], saved[2], saved[1], ctx->needs_input_grad(0),
                                             ctx->needs_input_grad(1));
    return {result[0], result[1], at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  TRIREME_CHECK(weight.dim() == 1 && x.size(-1) == weight.size(0), "rms_norm: rows of ", x.size(-1), ", weight of ",
                weight.numel());
  TRIREME_CHECK(x.scalar_type() == weight.scalar_type(), "rms_norm: x is ", x.scalar_type(), ", weight ",
                weight.scalar_type());
  return RmsNorm::apply(x.contiguous(), weight, eps);
}

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor x32 = x.to(accumulate_type(x));
  const at::Tensor normed = x32 * at::rsqrt(x32.pow(2).mean(-1, true) + eps);
  return weight * normed.to(x.scalar_type());
}

}  // namespace trireme
