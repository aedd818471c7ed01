#pragma once
// Private to ops/: a matrix as an operand of products. Whoever produces it (a norm, an activation, a quantisation)
// writes the forms that its consumers read, in one pass where a kernel can.

#include "trireme/nn/weight.h"
#include "trireme/ops/activation.h"
#include "trireme/ops/matmul/fp8.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme {

/// [T, D] in E4M3 with inverse scales fp32 [T, G]: columns g*D/G … (g+1)*D/G share inverse_scale[t, g].
struct Fp8Rows {
  at::Tensor data, inverse_scale;
  bool defined() const { return data.defined(); }
};

/// Codes with one scale for the whole matrix, in both layouts that FP8 products need: [T, D] and [D, T].
struct Fp8Codes {
  at::Tensor data, transposed, inverse;
  bool defined() const { return data.defined(); }
};

/// A matrix [T, D] in the forms that its producer wrote.
struct Operand {
  at::Tensor plain;  // compute dtype
  Fp8Rows rows;
  Fp8Codes codes;
  at::Tensor column_sums;  // [D] compute dtype: the bias gradient, when this is the gradient of y = x W^T + b
};

/// The forms that consumers want.
struct OperandForms {
  bool plain = false, rows = false, column_sums = false;
  const Fp8Scale* codes = nullptr;  // null: not wanted; else how they are scaled
  bool codes_known = true;          // Fp8LinearScales::known of them
};

/// Every row scaled so that its largest magnitude becomes 448 (a row of zeros: scale 1). Infinite or NaN values give
/// NaN data in their row, for the non-finite check to see. x [T, D]; `groups` cuts the columns (2 for gate | up).
Fp8Rows quantise_rows(const at::Tensor& x_TD, int64_t groups = 1);
/// data * inverse_scale in `dtype`.
at::Tensor dequantise_rows(const Fp8Rows& rows, at::ScalarType dtype);

/// Column sums, fp32 inside (fp64 for fp64), rounded once.
at::Tensor sum_columns(const at::Tensor& x_TD);

/// Which function of its inputs a quantisation takes: x; gelu(x + bias); dy * gelu'(x + bias).
struct CodesSource {
  at::Tensor x, bias, dy;
  Activation gelu = Activation::kNone;  // of the latter two
};
/// Codes of the source under delayed scaling, and column sums where asked for. Where no step has ended (`known` false)
/// the scale is measured from the values first.
Operand make_codes(const CodesSource& source, const Fp8Scale& scale, bool known, bool want_column_sums);

/// Adds the forms that a producer of the plain form could not write itself, and drops the plain form when nobody reads
/// it. On a GPU rows and widths of codes are multiples of 16.
void complete(Operand& operand, const OperandForms& wanted);
/// The same from a plain matrix.
Operand make_operand(const at::Tensor& plain, const OperandForms& wanted);

/// scale = half the largest code / amax where amax is a number above 0, else as it was; inverse = 1 / scale.
void follow_amax(const at::Tensor& scale, const at::Tensor& inverse, const at::Tensor& amax, const at::Tensor& largest);

namespace launch {
Fp8Rows quantise_rows(const at::Tensor& x_TD);
Operand make_codes(const CodesSource& source, const Fp8Scale& scale, bool want_column_sums);
/// [R, C] bytes -> [C, R].
at::Tensor transpose_bytes(const at::Tensor& matrix);
}  // namespace launch

}  // namespace trireme
