#include "activations.h"

#include "trireme/base/error.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

constexpr int64_t kWidestGeluBytes = 32768;  // rows of the kernel with gradients of vectors

const char* approximation(Activation form) { return form == Activation::kGeluTanh ? "tanh" : "none"; }

void check_gelu(const at::Tensor& x, const at::Tensor& bias, Activation form) {
  TRIREME_CHECK(form == Activation::kGeluErf || form == Activation::kGeluTanh,
                "gelu: the activation is neither kGeluErf nor kGeluTanh");
  TRIREME_CHECK(bias.dim() == 1 && bias.size(0) == x.size(1), "gelu: x ", x.sizes(), ", bias ", bias.sizes());
}

}  // namespace

at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, Activation form) {
  check_gelu(x, bias, form);
  TRIREME_RETURN_LAUNCH(row_kernel_choice("gelu", x, kWidestGeluBytes), gelu_forward(x, bias, form));
  return at::gelu(x + bias, approximation(form));
}

GeluGradients gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Activation form) {
  check_gelu(x, bias, form);
  TRIREME_RETURN_LAUNCH(row_kernel_choice("gelu_backward", x, kWidestGeluBytes), gelu_backward(dy, x, bias, form));
  const at::Tensor dx = at::gelu_backward(dy, x + bias, approximation(form));
  return {dx, sum_columns(dx)};
}

Operand gelu_forward_operand(const at::Tensor& x, const at::Tensor& bias, Activation form, const OperandForms& wanted) {
  if (wanted.codes != nullptr && !wanted.plain && !wanted.rows)
    return make_codes({x, bias, {}, form}, *wanted.codes, wanted.codes_known, wanted.column_sums);
  return make_operand(gelu_forward(x, bias, form), wanted);
}

Operand gelu_backward_operand(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Activation form,
                              const OperandForms& wanted) {
  if (wanted.codes != nullptr && !wanted.plain && !wanted.rows)
    return make_codes({x, bias, dy, form}, *wanted.codes, wanted.codes_known, wanted.column_sums);
  GeluGradients gradients = gelu_backward(dy, x, bias, form);
  Operand result;
  result.plain = gradients.dx;
  result.column_sums = gradients.d_bias;
  complete(result, wanted);
  return result;
}

namespace {

/// What the kernel of a gate writes. Forms that no kernel writes are derived from the plain one; the kernel for GeGLU
/// writes no other.
OperandForms written_forms(OperandForms wanted, Activation form) {
  const bool codes = form == Activation::kSwiglu;
  wanted.plain = wanted.need_plain() || wanted.column_sums || !codes;
  wanted.rows = wanted.rows && codes;
  return wanted;
}

at::Tensor gate_of(const at::Tensor& gate, Activation form) {
  return form == Activation::kSwiglu ? at::silu(gate) : at::gelu(gate, "tanh");
}

GatedForward compose_forward(const at::Tensor& gate_up, Activation form, bool keep_fp8) {
  const int64_t f = gate_up.size(-1) / 2;
  GatedForward result;
  result.y.plain = gate_of(gate_up.narrow(-1, 0, f), form).mul_(gate_up.narrow(-1, f, f));
  if (keep_fp8) result.kept_fp8 = quantize_rows(gate_up, 2);
  return result;
}

at::Tensor plain_gate_up(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& kept_fp8) {
  return kept_fp8.defined() ? dequantize_rows(kept_fp8, dy.scalar_type()) : gate_up;
}

Operand compose_backward(const at::Tensor& dy, const at::Tensor& both, Activation form) {
  const int64_t f = both.size(-1) / 2;
  const at::Tensor gate = both.narrow(-1, 0, f), up = both.narrow(-1, f, f), d_gate = dy * up;
  Operand result;
  result.plain = at::empty_like(both);
  result.plain.narrow(-1, 0, f).copy_(form == Activation::kSwiglu ? at::silu_backward(d_gate, gate)
                                                                  : at::gelu_backward(d_gate, gate, "tanh"));
  result.plain.narrow(-1, f, f).copy_(gate_of(gate, form).mul_(dy));
  return result;
}

GatedForward forward_plain_and_rows(const at::Tensor& gate_up, Activation form, const OperandForms& wanted,
                                    bool keep_fp8) {
  TRIREME_RETURN_LAUNCH(Dispatch("gated_activation", gate_up).choice(), gated_forward(gate_up, form, wanted, keep_fp8));
  return compose_forward(gate_up, form, keep_fp8);
}

Operand backward_plain_and_rows(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& kept_fp8,
                                Activation form, const OperandForms& wanted) {
  TRIREME_RETURN_LAUNCH(Dispatch("gated_activation_backward", kept_fp8.defined() ? kept_fp8.data : gate_up).choice(),
                        gated_backward(dy, gate_up, kept_fp8, form, wanted));
  return compose_backward(dy, plain_gate_up(dy, gate_up, kept_fp8), form);
}

}  // namespace

GatedForward gated_forward(const at::Tensor& gate_up, Activation form, const OperandForms& wanted, bool keep_fp8) {
  TRIREME_CHECK(is_gated(form), "gated_forward: the activation has no gate");
  const bool codes = form == Activation::kSwiglu;
  GatedForward result = forward_plain_and_rows(gate_up, form, written_forms(wanted, form), keep_fp8 && codes);
  if (keep_fp8 && !codes) result.kept_fp8 = quantize_rows(gate_up, 2);
  complete(result.y, wanted);
  return result;
}

Operand gated_backward(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& kept_fp8, Activation form,
                       const OperandForms& wanted) {
  const OperandForms written = written_forms(wanted, form);
  Operand result = form == Activation::kSwiglu
                       ? backward_plain_and_rows(dy, gate_up, kept_fp8, form, written)
                       : backward_plain_and_rows(dy, plain_gate_up(dy, gate_up, kept_fp8), {}, form, written);
  complete(result, wanted);
  return result;
}

}  // namespace trireme
