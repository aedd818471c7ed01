#pragma once
// Private to ops/: SwiGLU (Shazeer 2020) of a fused projection gate_up [T, 2F], laid out gate | up, in one pass over
// the rows. Autograd is not recorded.

#include "matmul/operand.h"

#include <ATen/core/Tensor.h>

namespace trireme {

struct SwigluForward {
  Operand y;         // silu(gate) * up [T, F], in the forms `wanted`
  Fp8Rows kept_fp8;  // if requested: gate_up in FP8, one scale for each half of a row
};
SwigluForward swiglu_forward(const at::Tensor& gate_up, const OperandForms& wanted, bool keep_fp8);

/// The gradient of gate_up from dy [T, F] and the kept gate_up: the plain matrix, or `kept_fp8` if that is undefined.
Operand swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& kept_fp8,
                        const OperandForms& wanted);

namespace launch {
SwigluForward swiglu_forward(const at::Tensor& gate_up, bool want_plain, bool want_rows, bool keep_fp8);
Operand swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, const Fp8Rows& kept_fp8, bool want_plain,
                        bool want_rows);
}  // namespace launch

}  // namespace trireme
