#include "activations.h"

#include "kernels/gelu/gelu.h"
#include "kernels/swiglu/swiglu.h"
#include "launch.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace trireme::launch {

namespace {

kernels::GeluKind kind(Activation form) {
  return form == Activation::kGeluTanh ? kernels::GeluKind::kTanh : kernels::GeluKind::kErf;
}

}  // namespace

at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, Activation form) {
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  kernels::GeluForward a;
  a.x = x.const_data_ptr();
  a.bias = data_or_null(bias);
  a.y = y.mutable_data_ptr();
  a.kind = kind(form);
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.element = element(x);
  launched(kernels::gelu_forward(a, stream_of(x)), "gelu_forward");
  return y;
}

GeluGradients gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Activation form) {
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor gradient = dy.contiguous();
  at::Tensor dx = at::empty_like(x), d_bias = at::empty_like(bias);
  const at::Tensor workspace =
      at::empty({kernels::gelu_backward_workspace(x.size(0), x.size(1))}, x.options().dtype(at::kFloat));
  kernels::GeluBackward a;
  a.dy = gradient.const_data_ptr();
  a.x = x.const_data_ptr();
  a.bias = data_or_null(bias);
  a.dx = dx.mutable_data_ptr();
  a.d_bias = d_bias.mutable_data_ptr();
  a.workspace = workspace.mutable_data_ptr<float>();
  a.kind = kind(form);
  a.rows = x.size(0);
  a.columns = x.size(1);
  a.element = element(x);
  launched(kernels::gelu_backward(a, stream_of(x)), "gelu_backward");
  return {dx, d_bias};
}

namespace {

kernels::GateKind gate_kind(Activation form) {
  return form == Activation::kGegluTanh ? kernels::GateKind::kGeluTanh : kernels::GateKind::kSilu;
}

kernels::SwigluCodes codes(const Fp8Rows& rows) {
  kernels::SwigluCodes out;
  out.data = bytes(rows.data);
  out.inverse = rows.inverse_scale.mutable_data_ptr<float>();
  return out;
}

/// Runs swiglu_forward or swiglu_backward, whose result is [tokens, columns].
template <class Arguments, class Launch>
void launch_gate(Operand& result, Arguments& a, const at::Tensor& like, int64_t columns, const OperandForms& wanted,
                 const char* kernel, const Launch& launch) {
  a.element = element(like);
  result.maxima = launch_with_maxima(like, a.tokens, columns, wanted, kernel, [&](const auto& maxima) {
    a.maxima = maxima;
    return launch(a, stream_of(like));
  });
}

}  // namespace

GatedForward gated_forward(const at::Tensor& gate_up, Activation form, const OperandForms& wanted, bool keep_fp8) {
  const c10::cuda::CUDAGuard guard(gate_up.device());
  const int64_t tokens = gate_up.size(0), f = gate_up.size(1) / 2;
  GatedForward result;
  kernels::SwigluForward a;
  a.gate = gate_kind(form);
  a.gate_up = gate_up.const_data_ptr();
  allocate_forms(result.y, gate_up, tokens, f, wanted.plain, wanted.rows, a.y, a.fp8);
  if (keep_fp8) {
    result.kept_fp8 = empty_rows(gate_up, tokens, 2 * f, 2);
    a.saved = codes(result.kept_fp8);
  }
  a.tokens = tokens;
  a.f = f;
  launch_gate(result.y, a, gate_up, f, wanted, "swiglu_forward", kernels::swiglu_forward);
  return result;
}

Operand gated_backward(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& kept_fp8, Activation form,
                       const OperandForms& wanted) {
  const c10::cuda::CUDAGuard guard(dy.device());
  const at::Tensor gradient = dy.contiguous();
  const int64_t tokens = dy.size(0), f = dy.size(1);
  Operand result;
  kernels::SwigluBackward a;
  a.gate = gate_kind(form);
  a.dy = gradient.const_data_ptr();
  if (kept_fp8.defined())
    a.saved = codes(kept_fp8);
  else
    a.gate_up = gate_up.const_data_ptr();
  allocate_forms(result, dy, tokens, 2 * f, wanted.plain, wanted.rows, a.d_gate_up, a.fp8);
  a.tokens = tokens;
  a.f = f;
  launch_gate(result, a, dy, 2 * f, wanted, "swiglu_backward", kernels::swiglu_backward);
  return result;
}

}  // namespace trireme::launch
