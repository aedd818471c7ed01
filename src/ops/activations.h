#pragma once
// Private to ops/: the activations of an MLP over the rows of a matrix.

#include "matmul/operand.h"
#include "trireme/ops/activation.h"

#include <ATen/core/Tensor.h>

namespace trireme {

// GELU of a product plus its bias, in one pass over the rows. Matrices [T, F], bias [F]; autograd is not recorded.

/// gelu(x + bias).
at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, Activation form);
struct GeluGradients {
  at::Tensor dx, d_bias;
};
GeluGradients gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Activation form);

/// The activation in the forms that products read.
Operand gelu_forward_operand(const at::Tensor& x, const at::Tensor& bias, Activation form, const OperandForms& wanted);
Operand gelu_backward_operand(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Activation form,
                              const OperandForms& wanted);

namespace launch {
at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, Activation form);
GeluGradients gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Activation form);
}  // namespace launch

// A gated activation of a fused projection gate_up [T, 2F], laid out gate | up, in one pass over the rows. Autograd is
// not recorded.

struct GatedForward {
  Operand y;         // activation(gate) * up [T, F], in the forms `wanted`
  Fp8Rows kept_fp8;  // if requested: gate_up in FP8, one scale for each half of a row
};
GatedForward gated_forward(const at::Tensor& gate_up, Activation form, const OperandForms& wanted, bool keep_fp8);

/// The gradient of gate_up from dy [T, F] and the kept gate_up: the plain matrix, or `kept_fp8` if that is undefined.
Operand gated_backward(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& kept_fp8, Activation form,
                       const OperandForms& wanted);

namespace launch {
/// Writes the plain form and rows if wanted, and the maxima that wanted columns and current codes are made of where the
/// kernel finds them. With codes, of y or of gate_up, kSwiglu only.
GatedForward gated_forward(const at::Tensor& gate_up, Activation form, const OperandForms& wanted, bool keep_fp8);
Operand gated_backward(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& kept_fp8, Activation form,
                       const OperandForms& wanted);
}  // namespace launch

}  // namespace trireme
