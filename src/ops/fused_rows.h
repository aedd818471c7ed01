#pragma once
// Private to ops/: the elementwise work between a block's products, each in one pass over its rows
// where a kernel serves, as at:: compositions elsewhere (the oracle of the kernels' tests).
// Nothing here records autograd.

#include "trireme/ops/fp8.h"

#include <ATen/core/Tensor.h>

namespace trireme::rows {

/// y = weight * to(T, x * rstd), rstd = 1 / sqrt(mean(x^2) + eps). x [T, D].
struct Normed {
  at::Tensor y;     // when wanted
  Fp8Rows fp8;      // when wanted: y quantised
  at::Tensor rstd;  // fp32 [T, 1] (fp64 for fp64)
};
Normed norm_forward(const at::Tensor& x_TD, const at::Tensor& weight, double eps, bool want_y, bool want_fp8);
/// y again, from what forward kept.
at::Tensor norm_again(const at::Tensor& x_TD, const at::Tensor& rstd, const at::Tensor& weight, double eps);
/// dx, plus `residual_gradient` when defined; *d_weight when asked for.
at::Tensor norm_backward(const at::Tensor& dy_TD, const at::Tensor& x_TD, const at::Tensor& rstd,
                         const at::Tensor& weight, const at::Tensor& residual_gradient, at::Tensor* d_weight);

/// silu(gate) * up of gate_up [T, 2F] laid out gate | up.
struct Activated {
  at::Tensor y;   // when wanted, [T, F]
  Fp8Rows fp8;    // when wanted: y quantised
  Fp8Rows saved;  // when wanted: gate_up quantised, one scale for each half of a row
};
Activated swiglu_forward(const at::Tensor& gate_up, bool want_y, bool want_fp8, bool save_fp8);

/// A gradient in the compute dtype, in FP8, or both.
struct Gradient {
  at::Tensor plain;
  Fp8Rows fp8;
};
/// d gate_up [T, 2F] from dy [T, F] and gate_up as it was kept: plain, or else gate_up_fp8.
Gradient swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& gate_up_fp8, bool want_plain,
                         bool want_fp8);

}  // namespace trireme::rows
