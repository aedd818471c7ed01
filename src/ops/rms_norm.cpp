#include "rms_norm.h"

#include "row_kernels.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>

#include <tuple>

namespace trireme {

namespace {

Choice rms_norm_choice(const at::Tensor& x) {
  return Dispatch("rms_norm", x)
      .needs(x.size(-1) <= kWidestNormRow, "rows are wider than 16,384 elements")
      .choice(x.is_cuda() ? Runs::kLibrary : Runs::kComposition);
}

RmsNormed normed_rows(const at::Tensor& x, const at::Tensor& weight, double eps, bool want_plain, bool want_rows) {
  const Choice choice = rms_norm_choice(x);
  TRIREME_LAUNCH(choice, rms_norm_forward(x, weight, eps, want_plain, want_rows));
  RmsNormed result;
  if (choice.who == Runs::kLibrary) {
    std::tie(result.y.plain, result.rstd) = at::_fused_rms_norm(x, {x.size(-1)}, weight, eps);
    return result;
  }
  const at::Tensor wide = x.to(accumulate_type(x));
  result.rstd = at::rsqrt(wide.square().mean(-1, true).add_(eps));
  result.y.plain = wide.mul(result.rstd).to(x.scalar_type()).mul_(weight);
  return result;
}

}  // namespace

RmsNormed rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, const OperandForms& wanted) {
  RmsNormed result = normed_rows(x, weight, eps, wanted.need_plain(), wanted.rows);
  complete(result.y, wanted);
  return result;
}

at::Tensor rms_norm_recompute(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight, double eps) {
  // The kernel recomputes rstd to the same bits: one pass over x is cheaper than reading it.
  if (rms_norm_choice(x).who != Runs::kComposition) return normed_rows(x, weight, eps, true, false).y.plain;
  return x.to(accumulate_type(x)).mul(rstd).to(x.scalar_type()).mul_(weight);
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                             const at::Tensor& weight, const at::Tensor& d_residual, at::Tensor* d_weight) {
  const Choice choice = rms_norm_choice(x);
  TRIREME_LAUNCH(choice, rms_norm_backward(dy, x, rstd, weight, d_residual, d_weight));
  if (choice.who == Runs::kLibrary) {
    const auto [dx, dw] =
        at::_fused_rms_norm_backward(dy.contiguous(), x, {x.size(-1)}, rstd, weight, {true, d_weight != nullptr});
    if (d_weight != nullptr) *d_weight = dw;
    return d_residual.defined() ? dx.add(d_residual) : dx;
  }
  const at::ScalarType type = accumulate_type(x);
  const at::Tensor normed = x.to(type).mul(rstd);
  // Forward multiplied the weight by the rounded normalised value.
  if (d_weight != nullptr)
    *d_weight = dy.to(type).mul(normed.to(x.scalar_type()).to(type)).sum(0).to(weight.scalar_type());
  const at::Tensor dn = dy.mul(weight).to(type);
  const at::Tensor mean = dn.mul(normed).mean(-1, true);
  at::Tensor dx = dn.sub(normed.mul(mean)).mul_(rstd);
  if (d_residual.defined()) dx.add_(d_residual);
  return dx.to(x.scalar_type());
}

}  // namespace trireme
