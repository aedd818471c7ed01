#pragma once
// FP8 matrices: frozen weights with one scale, activations and gradients with one scale per row.
//
// E4M3 (largest value 448) throughout: a scale per row leaves the three bits of mantissa that E5M2
// would give away for range. A value is data * inverse_scale. Scales are formed and used on the
// device; products accumulate in fp32 and come out in the compute dtype.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

/// [T, D] in E4M3 with inverse scales fp32 [T, G]: columns g*D/G … (g+1)*D/G share inverse_scale[t, g].
struct Fp8Rows {
  at::Tensor data, inverse_scale;
  bool defined() const { return data.defined(); }
};

/// A linear layer's weight as its unit stores it: in the compute dtype, or frozen in E4M3.
struct Weight {
  at::Tensor matrix;         // [out, in]
  at::Tensor inverse_scale;  // fp32 scalar tensor; undefined unless E4M3
  bool fp8() const { return inverse_scale.defined(); }
};

constexpr double kFp8Max = 448.0;

/// Every row scaled so that its largest magnitude becomes 448 (a row of zeros: scale 1). Infinite or
/// NaN values give NaN data in their row, for the non-finite check to see. x [T, D]; `groups` cuts
/// the columns (2 for gate | up).
Fp8Rows quantise_rows(const at::Tensor& x_TD, int64_t groups = 1);
/// data * inverse_scale in `dtype`.
at::Tensor dequantise_rows(const Fp8Rows& rows, at::ScalarType dtype);

/// What a product is added to before it is rounded, of the product's shape and dtype.
struct Addend {
  at::Tensor sum;            // undefined: none
  bool overwritten = false;  // the result takes its memory
};

/// x W^T (+ addend) [T, out] in `dtype`, rounded once; x with one scale per row.
at::Tensor fp8_product(const Fp8Rows& x, const Weight& weight, at::ScalarType dtype, const Addend& addend = {});
/// dy W (+ addend) [T, in]: the gradient to the layer's input. Hopper multiplies K-major FP8 operands only, so
/// the weight is transposed first (one pass over its bytes, released afterwards).
at::Tensor fp8_input_gradient(const Fp8Rows& dy, const Weight& weight, at::ScalarType dtype, const Addend& addend = {});

/// The largest |w|, fp32 scalar on w's device, without a copy of w in fp32.
at::Tensor fp8_amax(const at::Tensor& w);
/// amax / 448 as fp32; 1 where amax is 0.
at::Tensor fp8_inverse_scale(const at::Tensor& amax);
/// target (E4M3) = w / inverse_scale, rounded to nearest, saturated; any shape.
void fp8_cast_(const at::Tensor& target, const at::Tensor& w, const at::Tensor& inverse_scale);

}  // namespace trireme
