#pragma once
// Private to ops/: GELU of a product plus its bias, in one pass over the rows. Matrices [T, F]; autograd is not
// recorded.

#include "matmul/operand.h"
#include "trireme/ops/activation.h"

#include <ATen/core/Tensor.h>

namespace trireme {

/// gelu(x + bias).
at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, Activation form);
struct GeluGradients {
  at::Tensor dx, d_bias;
};
GeluGradients gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Activation form);

/// The same, written in the forms that products read.
Operand gelu_forward_operand(const at::Tensor& x, const at::Tensor& bias, Activation form, const OperandForms& wanted);
Operand gelu_backward_operand(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Activation form,
                              const OperandForms& wanted);

namespace launch {
at::Tensor gelu_forward(const at::Tensor& x, const at::Tensor& bias, Activation form);
GeluGradients gelu_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias, Activation form);
}  // namespace launch

}  // namespace trireme
