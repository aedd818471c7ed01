#include "fused_rows.h"

#include "fp8_bridge.h"

#include <ATen/ATen.h>

namespace trireme::rows {

namespace {

at::ScalarType accumulate_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

Normed norm_forward(const at::Tensor& x_TD, const at::Tensor& weight, double eps, bool want_y, bool want_fp8) {
  if (bridge::has_norm_kernels(x_TD)) return bridge::norm_forward(x_TD, weight, eps, want_y, want_fp8);
  const at::Tensor x = x_TD.to(accumulate_type(x_TD));
  Normed result;
  result.rstd = at::rsqrt(x.square().mean(-1, true).add_(eps));
  result.y = x.mul(result.rstd).to(x_TD.scalar_type()).mul_(weight);
  if (want_fp8) result.fp8 = quantise_rows(result.y);
  if (!want_y) result.y = at::Tensor();
  return result;
}

at::Tensor norm_again(const at::Tensor& x_TD, const at::Tensor& rstd, const at::Tensor& weight, double eps) {
  // One pass over x is cheaper for a kernel than reading the root: it forms it again, to the same bits.
  if (bridge::has_norm_kernels(x_TD)) return bridge::norm_forward(x_TD, weight, eps, true, false).y;
  return x_TD.to(accumulate_type(x_TD)).mul(rstd).to(x_TD.scalar_type()).mul_(weight);
}

at::Tensor norm_backward(const at::Tensor& dy_TD, const at::Tensor& x_TD, const at::Tensor& rstd,
                         const at::Tensor& weight, const at::Tensor& residual_gradient, at::Tensor* d_weight) {
  if (bridge::has_norm_kernels(x_TD))
    return bridge::norm_backward(dy_TD, x_TD, rstd, weight, residual_gradient, d_weight);
  const at::ScalarType type = accumulate_type(x_TD);
  const at::Tensor normed = x_TD.to(type).mul(rstd);
  if (d_weight != nullptr)
    *d_weight = dy_TD.to(type).mul(normed.to(x_TD.scalar_type()).to(type)).sum(0).to(weight.scalar_type());
  const at::Tensor dn = dy_TD.mul(weight).to(type);
  const at::Tensor mean = dn.mul(normed).mean(-1, true);
  at::Tensor dx = dn.sub(normed.mul(mean)).mul_(rstd);
  if (residual_gradient.defined()) dx.add_(residual_gradient);
  return dx.to(x_TD.scalar_type());
}

Activated swiglu_forward(const at::Tensor& gate_up, bool want_y, bool want_fp8, bool save_fp8) {
  if (bridge::has_fp8_kernels(gate_up)) return bridge::swiglu_forward(gate_up, want_y, want_fp8, save_fp8);
  const int64_t f = gate_up.size(-1) / 2;
  Activated result;
  result.y = at::silu(gate_up.narrow(-1, 0, f)).mul_(gate_up.narrow(-1, f, f));
  if (want_fp8) result.fp8 = quantise_rows(result.y);
  if (save_fp8) result.saved = quantise_rows(gate_up, 2);
  if (!want_y) result.y = at::Tensor();
  return result;
}

Gradient swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& gate_up_fp8, bool want_plain,
                         bool want_fp8) {
  const at::Tensor& kept = gate_up_fp8.defined() ? gate_up_fp8.data : gate_up;
  if (bridge::has_fp8_kernels(kept)) return bridge::swiglu_backward(dy, gate_up, gate_up_fp8, want_plain, want_fp8);
  const at::Tensor both = gate_up_fp8.defined() ? dequantise_rows(gate_up_fp8, dy.scalar_type()) : gate_up;
  const int64_t f = both.size(-1) / 2;
  const at::Tensor gate = both.narrow(-1, 0, f), up = both.narrow(-1, f, f);
  Gradient result;
  result.plain = at::empty_like(both);
  result.plain.narrow(-1, 0, f).copy_(at::silu_backward(dy * up, gate));
  result.plain.narrow(-1, f, f).copy_(at::silu(gate).mul_(dy));
  if (want_fp8) result.fp8 = quantise_rows(result.plain);
  if (!want_plain) result.plain = at::Tensor();
  return result;
}

}  // namespace trireme::rows
