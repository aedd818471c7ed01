#pragma once
// Private to ops/: FP8 operands of trained layers from our kernel, and their products.

#include "trireme/ops/fp8.h"
#include "trireme/ops/fp8_training.h"

namespace trireme {

struct Fp8Matrix {
  at::Tensor codes, inverse;  // inverse: fp32, one scale of the matrix, or one of each of its rows
};
/// a b^T (+ bias) (+ addend) [M, N] in `dtype`; scales of matrices, or of rows on both sides; bias [N] undefined: none.
/// Sums in the matrix engine are short ones (fast accumulation), as in the MLPerf submissions.
at::Tensor fp8_product(const Fp8Matrix& a_MK, const Fp8Matrix& b_NK, at::ScalarType dtype,
                       const at::Tensor& bias_N = {}, const Addend& addend = {});

/// The end of a product composed in fp32, which it may overwrite: the addend, and one rounding to `dtype`.
at::Tensor added_and_rounded(at::Tensor product, const Addend& addend, at::ScalarType dtype);

namespace bridge {

/// x alone; or z = x, bias: gelu(z + bias); with dy: its gradient. Contiguous.
struct OperandSource {
  at::Tensor x, bias, dy;
  GeluForm form = GeluForm::kErf;
};
#ifdef TRIREME_WITH_CUDA
Fp8Operand fp8_operand(const OperandSource& source, const Fp8Tensor& scaling, bool want_sums);
at::Tensor fp8_product(const Fp8Matrix& a_MK, const Fp8Matrix& b_NK, at::ScalarType dtype, const at::Tensor& bias_N,
                       const Addend& addend);
#else
inline Fp8Operand fp8_operand(const OperandSource&, const Fp8Tensor&, bool) { return {}; }
inline at::Tensor fp8_product(const Fp8Matrix&, const Fp8Matrix&, at::ScalarType, const at::Tensor&, const Addend&) {
  return {};
}
#endif

}  // namespace bridge

}  // namespace trireme
