#include "rms_norm.h"

#include "kernels/rms_norm/rms_norm.h"
#include "launch.h"
#include "row_output.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::launch {

RmsNormed rms_norm_forward(const at::Tensor& x_TD, const at::Tensor& weight, double eps, bool want_plain,
                           bool want_rows) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  const at::Tensor x = x_TD.contiguous();
  RmsNormed result;
  result.rstd = at::empty({x.size(0), 1}, x.options().dtype(at::kFloat));
  kernels::RmsNormForward a;
  a.x = x.const_data_ptr();
  a.weight = weight.const_data_ptr();
  a.rstd = result.rstd.mutable_data_ptr<float>();
  if (want_plain) {
    result.y.plain = at::empty_like(x);
    a.y = result.y.plain.mutable_data_ptr();
  }
  if (want_rows) {
    result.y.rows = empty_rows(x, x.size(0), x.size(1), 1);
    a.fp8 = row_output(result.y.rows);
  }
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.eps = static_cast<float>(eps);
  a.element = element(x);
  launched(kernels::rms_norm_forward(a, stream_of(x)), "rms_norm_forward");
  return result;
}

at::Tensor rms_norm_backward(const at::Tensor& dy_TD, const at::Tensor& x_TD, const at::Tensor& rstd,
                             const at::Tensor& weight, const at::Tensor& d_residual, at::Tensor* d_weight) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  const at::Tensor dy = dy_TD.contiguous(), x = x_TD.contiguous();
  const at::Tensor residual = d_residual.defined() ? d_residual.contiguous() : at::Tensor();
  at::Tensor dx = at::empty_like(x), workspace;
  kernels::RmsNormBackward a;
  a.dy = dy.const_data_ptr();
  a.x = x.const_data_ptr();
  a.weight = weight.const_data_ptr();
  a.rstd = rstd.const_data_ptr<float>();
  a.d_residual = data_or_null(residual);
  a.dx = dx.mutable_data_ptr();
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.element = element(x);
  if (d_weight != nullptr) {
    *d_weight = at::empty_like(weight);
    a.dw = d_weight->mutable_data_ptr();
    workspace = at::empty({kernels::rms_norm_backward_workspace(a.rows, a.columns)}, x.options().dtype(at::kFloat));
    a.workspace = workspace.mutable_data_ptr<float>();
  }
  launched(kernels::rms_norm_backward(a, stream_of(x)), "rms_norm_backward");
  return dx;
}

}  // namespace trireme::launch
