#pragma once
// Private to ops/: matrix products. Operands [rows, inner dimension] on both sides, results [M, N].

#include "matmul/operand.h"
#include "trireme/ops/matmul/measure.h"

#include <ATen/core/Tensor.h>

namespace trireme {

/// A matrix of the product's shape and dtype that is added to the product before rounding.
struct Addend {
  at::Tensor sum;            // undefined: none
  bool overwritten = false;  // whether the result may overwrite `sum`
};

/// E4M3 or E5M2 codes. inverse: fp32, one inverse scale for the matrix or one per row.
struct Fp8Matrix {
  at::Tensor codes, inverse;
};

/// `codes` as an operand with scales per row. cuBLASLt requires them on both sides, so one inverse scale for the matrix
/// is repeated.
Fp8Matrix of_rows(const at::Tensor& codes, const at::Tensor& inverse_scale);
Fp8Matrix of_rows(const Fp8Rows& rows);

/// How Hopper's tensor cores sum FP8 products.
enum class Accumulate {
  kFast,   // with the 14 bits of mantissa of their accumulators
  kSplit,  // in parts along the inner dimension that are added in fp32
};
/// Time of a product with kSplit as a factor of that with kFast: products of Llama2-7B in a step on an H200 with two
/// rows of 4,096 tokens run at 1,395 (forward, fast), 1,241 (dgrad) and 1,208 TFLOP/s (wgrad).
inline constexpr double kSplitSlowdown = 1.14;

/// a b^T (+ bias) (+ addend) in `dtype`. Scales per matrix, or per row on both sides; bias [N], undefined: none. On
/// GPUs that have such products by cuBLASLt: sizes must be multiples of 16, but M may be any number with scales per
/// row. Elsewhere in fp32.
at::Tensor fp8_product(const Fp8Matrix& a_MK, const Fp8Matrix& b_NK, Accumulate accumulate, at::ScalarType dtype,
                       const at::Tensor& bias_N = {}, const Addend& addend = {});

/// Writes the gradient to `target`, or adds it; rounded to the target's dtype after the addition.
void write_gradient(const GradientTarget& target, const at::Tensor& gradient);

/// Writes the product to `target`, or adds it.
void fp8_product_to(const GradientTarget& target, const Fp8Matrix& a_MK, const Fp8Matrix& b_NK, Accumulate accumulate);

/// a b (+ bias) (+ addend) by the library, in the operands' dtype. A bias is added before rounding. The addend is added
/// to the rounded product, unless it may be overwritten.
at::Tensor plain_product(const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N = {},
                         const Addend& addend = {});

/// a b (+ bias) by the library, written to `out`. On GPUs, large 16-bit products run by the algorithm that
/// measure_products() chose, which writes the library's bits.
void product_out(at::Tensor& out_MN, const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N = {});

/// a b (+ bias) by LibTorch's call, written to `out`, or added to it (then without a bias). `out` has the operands'
/// dtype, or is fp32.
void library_product(at::Tensor& out_MN, const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N,
                     bool adds);

/// a b, written or added to `target`. Operands of the target's dtype, or 16-bit operands for an fp32 target.
void plain_product_to(const GradientTarget& target, const at::Tensor& a_MK, const at::Tensor& b_KN);

namespace launch {
/// `out`: where the result goes if the addend is not overwritten; undefined: to a new tensor of `dtype`.
at::Tensor fp8_product(const Fp8Matrix& a_MK, const Fp8Matrix& b_NK, Accumulate accumulate, at::ScalarType dtype,
                       const at::Tensor& bias_N, const Addend& addend, const at::Tensor& out);
void product_out(at::Tensor& out_MN, const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& bias_N,
                 bool adds);
MeasuredProducts measure_products(at::Device device, ProductLoad load, bool alone);
}  // namespace launch

}  // namespace trireme
