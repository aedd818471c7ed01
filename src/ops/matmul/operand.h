#pragma once
// Private to ops/: a matrix as an operand of products. Its producer (a norm, an activation, a quantization) writes the
// forms that its consumers read, in one pass if a kernel can.

#include "trireme/nn/weight.h"
#include "trireme/ops/activation.h"
#include "trireme/ops/dispatch.h"
#include "trireme/ops/dropout.h"
#include "trireme/ops/matmul/fp8.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <utility>

namespace trireme {

/// [T, D] in E4M3 with inverse scales fp32 [T, G]: columns g*D/G … (g+1)*D/G - 1 share inverse_scale[t, g].
struct Fp8Rows {
  at::Tensor data, inverse_scale;
  bool defined() const { return data.defined(); }
};

/// Codes with one scale for the whole matrix, in the two layouts that FP8 products need: [T, D] and [D, T].
struct Fp8Codes {
  at::Tensor data, transposed, inverse;
  bool defined() const { return data.defined(); }
};

/// Largest magnitudes of a plain matrix, where a kernel that wrote or read it found them: who quantizes it need not
/// read it for them.
struct KnownMaxima {
  at::Tensor amax;     // fp32, one element
  at::Tensor columns;  // [any, D], the plain dtype: its columns have the largest magnitudes of the matrix's columns
};

/// A matrix [T, D] in the forms that its producer wrote.
struct Operand {
  at::Tensor plain;  // compute dtype
  Fp8Rows rows;
  Fp8Rows columns;  // the rows of the transpose: data [D, T], inverse_scale [D, 1]
  Fp8Codes codes;
  at::Tensor column_sums;  // [D] compute dtype: the bias gradient, if this operand is the gradient of y = x W^T + b
  KnownMaxima maxima;      // of plain, until complete()
};

/// Codes whose scale maps the matrix's own amax to the largest code.
enum class CurrentCodes { kNone, kE4m3, kE5m2 };

/// The forms of an operand that its consumers need.
struct OperandForms {
  bool plain = false, rows = false, columns = false, column_sums = false;
  const Fp8Scale* codes = nullptr;  // codes with delayed scaling; null: none
  bool codes_known = true;          // Fp8LinearScales::known
  CurrentCodes current = CurrentCodes::kNone;
  /// Whether complete() must make a wanted form from the plain form; the producers' kernels write plain and rows.
  bool need_plain() const { return plain || columns || codes != nullptr || current != CurrentCodes::kNone; }
};

/// The type in which values of x's type are summed.
inline at::ScalarType accumulate_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// [..., n] as [rows, n].
inline at::Tensor flatten_tokens(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

/// Whether the kernel of an operation that keeps a row on chip runs.
inline Choice row_kernel_choice(std::string_view operation, const at::Tensor& x, int64_t widest_bytes) {
  return Dispatch(operation, x)
      .needs(x.is_contiguous(), "the rows are not contiguous")
      .needs(x.size(-1) * x.element_size() <= widest_bytes, "the rows are wider than the kernel's registers")
      .needs(x.size(0) > 0, "there are no rows")
      .choice();
}

/// Each row is scaled so that its largest magnitude becomes 448 (a row of zeros has inverse scale 1). Infinite or NaN
/// values make their row NaN, so that the non-finite check finds them. x [T, D]; `groups`: number of column groups with
/// a scale each (2 for gate | up). `found`: receives KnownMaxima::columns of x where the kernel finds them.
Fp8Rows quantize_rows(const at::Tensor& x_TD, int64_t groups = 1, at::Tensor* found = nullptr);
/// Quantizes the columns of x [T, D], each with its own scale: data [D, T], inverse_scale [D, 1]. `known`:
/// KnownMaxima::columns of x.
Fp8Rows quantize_columns(const at::Tensor& x_TD, const at::Tensor& known = {});
/// data * inverse_scale in `dtype`.
at::Tensor dequantize_rows(const Fp8Rows& rows, at::ScalarType dtype);

/// Column sums, fp32 inside (fp64 for fp64), rounded once.
at::Tensor sum_columns(const at::Tensor& x_TD);
/// x times one factor for each column (+ bias [D]) (+ addend [T, D]), computed in the factors' type (fp32, or fp64) and
/// rounded once where our kernel runs.
at::Tensor scale_columns(const at::Tensor& x_TD, const at::Tensor& factors_D, const at::Tensor& bias_D = {},
                         const at::Tensor& addend_TD = {});
/// {x times one factor for each column, the sums of x other over rows in the factors' type [D]}.
std::pair<at::Tensor, at::Tensor> scale_and_sum_columns(const at::Tensor& x_TD, const at::Tensor& factors_D,
                                                        const at::Tensor& other_TD);
/// The dropout of a gradient as the operand of products; its plain form and its column sums come from one pass where
/// our kernel runs.
Operand make_dropped_operand(const at::Tensor& x_TD, const Dropout& dropout, const OperandForms& wanted);

/// The values that are quantized, as a function of the inputs: x; gelu(x + bias); dy * gelu'(x + bias).
struct CodesSource {
  at::Tensor x, bias, dy;
  Activation gelu = Activation::kNone;  // for the last two
};
/// Codes of the source with delayed scaling, and column sums if wanted. Before the end of the first step (`known`
/// false) the scale is first computed from the values.
Operand make_codes(const CodesSource& source, const Fp8Scale& scale, bool known, bool want_column_sums);

/// Codes of x with the scale of its own amax, in fp32: largest code / amax, 1 for a matrix of zeros. An infinite or NaN
/// value makes all products with the matrix NaN. Column sums if wanted. `known`: KnownMaxima::amax of x.
Operand make_current_codes(const at::Tensor& x_TD, CurrentCodes format, bool want_column_sums,
                           const at::Tensor& known = {});

/// [R, C] bytes -> [C, R], contiguous: `out` if it is defined, which must have the codes' type.
at::Tensor transpose_codes(const at::Tensor& codes, const at::Tensor& out = {});

/// Adds the forms that the producer of the plain form could not write itself, and frees the plain form if it is not
/// wanted. On a GPU, rows and columns of codes, and of a matrix in columns, must be multiples of 16.
void complete(Operand& operand, const OperandForms& wanted);
/// Makes the forms from a plain matrix.
Operand make_operand(const at::Tensor& plain, const OperandForms& wanted);

/// The rule of delayed scaling, defined in fp8_scales.cpp: scale = half the largest code / amax if amax is finite and
/// above 0, otherwise unchanged; inverse = 1 / scale. fp32 of one shape, `largest` too.
void follow_amax(const at::Tensor& scale, const at::Tensor& inverse, const at::Tensor& amax, const at::Tensor& largest);

namespace launch {
Fp8Rows quantize_rows(const at::Tensor& x_TD, at::Tensor* found);
Fp8Rows quantize_columns(const at::Tensor& x_TD, const at::Tensor& known);
/// A `scale` without Fp8Scale::scale: that of its amax, which has to be the source's own; inverse is written.
Operand make_codes(const CodesSource& source, const Fp8Scale& scale, bool want_column_sums);
Operand make_current_codes(const at::Tensor& x_TD, CurrentCodes format, bool want_column_sums, const at::Tensor& known);
at::Tensor transpose_bytes(const at::Tensor& matrix, const at::Tensor& out);
void write_codes(const at::Tensor& target, const at::Tensor& w, const at::Tensor& scale);
at::Tensor sum_columns(const at::Tensor& x_TD);
at::Tensor scale_columns(const at::Tensor& x_TD, const at::Tensor& factors_D, const at::Tensor& bias_D,
                         const at::Tensor& addend_TD);
std::pair<at::Tensor, at::Tensor> scale_and_sum_columns(const at::Tensor& x_TD, const at::Tensor& factors_D,
                                                        const at::Tensor& other_TD);
Operand dropout_with_sums(const at::Tensor& x_TD, const Dropout& dropout);  // plain and column_sums
}  // namespace launch

}  // namespace trireme
