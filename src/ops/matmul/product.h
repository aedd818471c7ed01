#pragma once
// Private to ops/: matrix products. Operands [rows, inner dimension] on both sides, results [M, N].

#include "matmul/operand.h"

#include <ATen/core/Tensor.h>

namespace trireme {

/// What a product is added to before it is rounded, of the product's shape and dtype.
struct Addend {
  at::Tensor sum;            // undefined: none
  bool overwritten = false;  // the result takes its memory
};

/// E4M3 or E5M2 codes; inverse: fp32, one scale of the matrix, or one of each of its rows.
struct Fp8Matrix {
  at::Tensor codes, inverse;
};

/// a b^T (+ bias) (+ addend) in `dtype`; scales of matrices, or of rows on both sides; bias [N] undefined: none. On
/// sm_90 through cuBLASLt, whose sums in the matrix engine are short ones (fast accumulation), as in the MLPerf
/// submissions; sizes are multiples of 16 there. Elsewhere in fp32.
at::Tensor fp8_product(const Fp8Matrix& a_MK, const Fp8Matrix& b_NK, at::ScalarType dtype,
                       const at::Tensor& bias_N = {}, const Addend& addend = {});

/// a b (+ bias) (+ addend) through the library, in the operands' dtype. The addend is added to the rounded product
/// unless its memory is overwritten; a bias is added inside the product.
at::Tensor plain_product(const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N = {},
                         const Addend& addend = {});

namespace launch {
at::Tensor fp8_product(const Fp8Matrix& a_MK, const Fp8Matrix& b_NK, at::ScalarType dtype, const at::Tensor& bias_N,
                       const Addend& addend);
}  // namespace launch

}  // namespace trireme
