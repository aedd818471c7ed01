#pragma once
// Private to ops/: tensors to the FP8 and row kernels. Without CUDA, and on GPUs other than sm_90,
// has_fp8_kernels() is false and the LibTorch composition serves.

#include "fused_rows.h"
#include "trireme/ops/fp8.h"

#include <ATen/core/Tensor.h>

namespace trireme::bridge {

#ifdef TRIREME_WITH_CUDA
/// True for tensors of any of our types (FP8 too) on a GPU that our kernels were built for.
bool has_fp8_kernels(const at::Tensor& x);
/// has_fp8_kernels(), of rows that norm_forward() and norm_backward() take.
bool has_norm_kernels(const at::Tensor& x);
Fp8Rows quantise_rows(const at::Tensor& x_TD);
/// [R, C] bytes -> [C, R].
at::Tensor transpose_bytes(const at::Tensor& matrix);
rows::Normed norm_forward(const at::Tensor& x_TD, const at::Tensor& weight, double eps, bool want_y, bool want_fp8);
at::Tensor norm_backward(const at::Tensor& dy_TD, const at::Tensor& x_TD, const at::Tensor& rstd,
                         const at::Tensor& weight, const at::Tensor& residual_gradient, at::Tensor* d_weight);
rows::Activated swiglu_forward(const at::Tensor& gate_up, bool want_y, bool want_fp8, bool save_fp8);
rows::Gradient swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& gate_up_fp8,
                               bool want_plain, bool want_fp8);
#else
inline bool has_fp8_kernels(const at::Tensor&) { return false; }
inline bool has_norm_kernels(const at::Tensor&) { return false; }
inline Fp8Rows quantise_rows(const at::Tensor&) { return {}; }
inline at::Tensor transpose_bytes(const at::Tensor&) { return {}; }
inline rows::Normed norm_forward(const at::Tensor&, const at::Tensor&, double, bool, bool) { return {}; }
inline at::Tensor norm_backward(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                const at::Tensor&, at::Tensor*) {
  return {};
}
inline rows::Activated swiglu_forward(const at::Tensor&, bool, bool, bool) { return {}; }
inline rows::Gradient swiglu_backward(const at::Tensor&, const at::Tensor&, const Fp8Rows&, bool, bool) { return {}; }
#endif

}  // namespace trireme::bridge
