#include "gelu.h"

#include "row_kernels.h"
#include "trireme/base/error.h"
#include "trireme/ops/dispatch.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

const char* approximation(Activation form) { return form == Activation::kGeluTanh ? "tanh" : "none"; }

void check_gelu(const at::Tensor& x, const at::Tensor& bias, Activation form) {
  TRIREME_CHECK(form == Activation::kGeluErf || form == Activation::kGeluTanh,
                "gelu: the activation is neither kGeluErf nor kGeluTanh");
  TRIREME_CHECK(bias.dim() == 1 && bias.size(0) == x.size(1), "gelu: x ", x.sizes(), ", bias ", bias.sizes());
}

}  // namespace

at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, Activation form) {
  check_gelu(x, bias, form);
  TRIREME_LAUNCH(row_kernel_choice("gelu", x, kWidestGeluBytes), gelu_forward(x, bias, form));
  return at::gelu(x + bias, approximation(form));
}

GeluGradients gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Activation form) {
  check_gelu(x, bias, form);
  TRIREME_LAUNCH(row_kernel_choice("gelu_backward", x, kWidestGeluBytes), gelu_backward(dy, x, bias, form));
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

}  // namespace trireme
