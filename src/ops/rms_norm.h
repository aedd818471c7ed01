#pragma once
// Private to ops/: RMS norm, in one pass over the rows. Matrices [T, D]; autograd is not recorded.

#include "matmul/operand.h"

#include <ATen/core/Tensor.h>

namespace trireme {

struct RmsNormed {
  Operand y;
  at::Tensor rstd;  // 1 / sqrt(mean(x^2) + eps): fp32 (fp64 for fp64) [T, 1]
};
RmsNormed rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, const OperandForms& wanted);
/// y in its plain form, recomputed from x and rstd to the same bits.
at::Tensor rms_norm_recompute(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight, double eps);
/// Returns dx, plus `d_residual` if defined; writes *d_weight if d_weight is not null.
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                             const at::Tensor& weight, const at::Tensor& d_residual, at::Tensor* d_weight);

namespace launch {
RmsNormed rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, bool want_plain, bool want_rows);
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                             const at::Tensor& weight, const at::Tensor& d_residual, at::Tensor* d_weight);
}  // namespace launch

}  // namespace trireme
