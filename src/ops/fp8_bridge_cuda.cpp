#include "fp8_bridge.h"

#include "bridge_tools.h"
#include "kernel_bridge.h"
#include "kernels/quantize/quantize.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/swiglu/swiglu.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::bridge {

namespace {

uint8_t* bytes(const at::Tensor& x) { return static_cast<uint8_t*>(x.mutable_data_ptr()); }

/// Room for FP8 rows of the shape of [rows, columns] on x's device.
Fp8Rows empty_rows(const at::Tensor& x, int64_t rows, int64_t columns, int64_t groups) {
  return {at::empty({rows, columns}, x.options().dtype(at::kFloat8_e4m3fn)),
          at::empty({rows, groups}, x.options().dtype(at::kFloat))};
}

kernels::Fp8Output row_output(const Fp8Rows& rows) {
  kernels::Fp8Output out;
  out.data = bytes(rows.data);
  out.scaling = kernels::Fp8Scaling::kRow;
  out.row_inverse = rows.inverse_scale.mutable_data_ptr<float>();
  return out;
}

kernels::SwigluCodes codes(const Fp8Rows& rows) {
  kernels::SwigluCodes out;
  out.data = bytes(rows.data);
  out.inverse = rows.inverse_scale.mutable_data_ptr<float>();
  return out;
}

}  // namespace

bool has_fp8_kernels(const at::Tensor& x) {
  if (!x.is_cuda()) return false;
  if (x.scalar_type() != at::kFloat8_e4m3fn) return has_kernels(x);
  return on_hopper(x.device());
}

bool has_norm_kernels(const at::Tensor& x) {
  constexpr int64_t kWidest = 16384;  // kernels/rms_norm/rms_norm.h
  return has_fp8_kernels(x) && x.size(-1) <= kWidest;
}

Fp8Rows quantise_rows(const at::Tensor& x_TD) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  Fp8Rows rows = empty_rows(x_TD, x_TD.size(0), x_TD.size(1), 1);
  launched(
      kernels::quantize_rows(x_TD.const_data_ptr(), bytes(rows.data), rows.inverse_scale.mutable_data_ptr<float>(),
                             x_TD.size(0), x_TD.size(1), element(x_TD), kernels::Fp8Format::kE4M3, stream_of(x_TD)),
      "quantize_rows");
  return rows;
}

at::Tensor transpose_bytes(const at::Tensor& matrix) {
  const c10::cuda::CUDAGuard guard(matrix.device());
  at::Tensor out = at::empty({matrix.size(1), matrix.size(0)}, matrix.options());
  launched(kernels::transpose_bytes(static_cast<const uint8_t*>(matrix.const_data_ptr()), bytes(out), matrix.size(0),
                                    matrix.size(1), stream_of(matrix)),
           "transpose_bytes");
  return out;
}

rows::Normed norm_forward(const at::Tensor& x_TD, const at::Tensor& weight, double eps, bool want_y, bool want_fp8) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  const at::Tensor x = x_TD.contiguous();
  rows::Normed result;
  result.rstd = at::empty({x.size(0), 1}, x.options().dtype(at::kFloat));
  kernels::RmsNormForward a;
  a.x = x.const_data_ptr();
  a.weight = weight.const_data_ptr();
  a.rstd = result.rstd.mutable_data_ptr<float>();
  if (want_y) {
    result.y = at::empty_like(x);
    a.y = result.y.mutable_data_ptr();
  }
  if (want_fp8) {
    result.fp8 = empty_rows(x, x.size(0), x.size(1), 1);
    a.fp8 = row_output(result.fp8);
  }
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.eps = static_cast<float>(eps);
  a.element = element(x);
  launched(kernels::rms_norm_forward(a, stream_of(x)), "rms_norm_forward");
  return result;
}

at::Tensor norm_backward(const at::Tensor& dy_TD, const at::Tensor& x_TD, const at::Tensor& rstd,
                         const at::Tensor& weight, const at::Tensor& residual_gradient, at::Tensor* d_weight) {
  const c10::cuda::CUDAGuard guard(x_TD.device());
  const at::Tensor dy = dy_TD.contiguous(), x = x_TD.contiguous();
  const at::Tensor residual = residual_gradient.defined() ? residual_gradient.contiguous() : at::Tensor();
  at::Tensor dx = at::empty_like(x), workspace;
  kernels::RmsNormBackward a;
  a.dy = dy.const_data_ptr();
  a.x = x.const_data_ptr();
  a.weight = weight.const_data_ptr();
  a.rstd = rstd.const_data_ptr<float>();
  if (residual.defined()) a.d_residual = residual.const_data_ptr();
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

rows::Activated swiglu_forward(const at::Tensor& gate_up, bool want_y, bool want_fp8, bool save_fp8) {
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const int64_t tokens = gate_up.size(0), f = gate_up.size(1) / 2;
  rows::Activated result;
  kernels::SwigluForward a;
  a.gate_up = gate_up.const_data_ptr();
  if (want_y) {
    result.y = at::empty({tokens, f}, gate_up.options());
    a.y = result.y.mutable_data_ptr();
  }
  if (want_fp8) {
    result.fp8 = empty_rows(gate_up, tokens, f, 1);
    a.fp8 = row_output(result.fp8);
  }
  if (save_fp8) {
    result.saved = empty_rows(gate_up, tokens, 2 * f, 2);
    a.saved = codes(result.saved);
  }
  a.tokens = tokens;
  a.f = f;
  a.element = element(gate_up);
  launched(kernels::swiglu_forward(a, stream_of(gate_up)), "swiglu_forward");
  return result;
}

rows::Gradient swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& gate_up_fp8,
                               bool want_plain, bool want_fp8) {
  const c10::cuda::CUDAGuard guard(dy.device());
  const at::Tensor gradient = dy.contiguous();
  const int64_t tokens = dy.size(0), f = dy.size(1);
  rows::Gradient result;
  kernels::SwigluBackward a;
  a.dy = gradient.const_data_ptr();
  if (gate_up_fp8.defined())
    a.saved = codes(gate_up_fp8);
  else
    a.gate_up = gate_up.const_data_ptr();
  if (want_plain) {
    result.plain = at::empty({tokens, 2 * f}, dy.options());
    a.d_gate_up = result.plain.mutable_data_ptr();
  }
  if (want_fp8) {
    result.fp8 = empty_rows(dy, tokens, 2 * f, 1);
    a.fp8 = row_output(result.fp8);
  }
  a.tokens = tokens;
  a.f = f;
  a.element = element(dy);
  launched(kernels::swiglu_backward(a, stream_of(dy)), "swiglu_backward");
  return result;
}

}  // namespace trireme::bridge
