#pragma once
// Private to ops/: SwiGLU of a fused projection gate_up [T, 2F], laid out gate | up, one pass over the rows. Nothing
// records autograd.

#include "matmul/operand.h"

#include <ATen/core/Tensor.h>

namespace trireme {

struct SwigluForward {
  Operand y;         // silu(gate) * up [T, F], in the forms `wanted`
  Fp8Rows kept_fp8;  // when asked for: gate_up in FP8, one scale for each half of a row
};
SwigluForward swiglu_forward(const at::Tensor& gate_up, const OperandForms& wanted, bool keep_fp8);

/// The gradient to gate_up from dy [T, F] and gate_up as it was kept: plain, or else `kept_fp8`.
Operand swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& kept_fp8,
                        const OperandForms& wanted);

namespace launch {
SwigluForward swiglu_forward(const at::Tensor& gate_up, bool want_plain, bool want_rows, bool keep_fp8);
Operand swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& kept_fp8, bool want_plain,
                        bool want_rows);
}  // namespace launch

}  // namespace trireme
