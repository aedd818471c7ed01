#pragma once
// Conversion of matrices to FP8 codes. Codes are rounded to nearest even and saturated; the largest is 448 in E4M3 and
// 57,344 in E5M2. All matrices contiguous, on the device. Deterministic. No allocation, no synchronisation.

#include "kernels/element.h"
#include "kernels/gelu/gelu.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

enum class Fp8Format { kE4M3, kE5M2 };

/// E4M3 output of a kernel over rows, with a scale per row:
///
///   row_inverse[r] = max|v_r| / 448 (1 for a row of zeros),   q = saturate(v / row_inverse[r])
///
/// v is the value rounded to the 16-bit type that the kernel would write. The dequantized value is q * row_inverse[r].
struct Fp8Output {
  uint8_t* data = nullptr;       // null: no FP8 output
  float* row_inverse = nullptr;  // [rows]
};

/// What the launch of a kernel that was asked for the maxima of a matrix says on the host: some kernels do not find
/// them.
struct FoundMaxima {
  bool amax = false;        // whether amax was written
  int64_t column_rows = 0;  // rows of column maxima that were written, 0: none
};
/// The most rows of column maxima of a matrix [rows, columns]: one for each block of a persistent grid.
int64_t column_maxima_rows(int64_t rows, int64_t columns);
/// Maxima of a plain matrix that a kernel writes or reads, for those who quantize it.
struct WantedMaxima {
  float* amax = nullptr;         // device scalar, overwritten with max|v|; null: not wanted
  void* columns = nullptr;       // [column_maxima_rows(), columns], the matrix's type, 16-byte aligned; or null
  FoundMaxima* found = nullptr;  // host; receives which of both are written; needed with either
};

/// The rows of x [rows, columns] as an Fp8Output has them; inverse fp32 [rows]. A row that contains NaN or infinity
/// gives NaN codes. For groups of columns with a scale each, pass rows * groups and columns / groups. Any size and
/// alignment; fast with 16-byte aligned rows of whole 16-byte packs of up to 65,536 columns (fp32: 32,768). Finds the
/// column maxima of fast 16-bit rows of 2,056 to 16,384 columns.
cudaError_t quantize_rows(const void* x, uint8_t* data, float* inverse, int64_t rows, int64_t columns, Element element,
                          cudaStream_t stream, const WantedMaxima& maxima = {});

/// The columns of a matrix as rows of E4M3 codes: the operand of products that sum over its rows, with a scale per
/// column.
///
///   inverse[c] = max|x[:, c]| / 448, at least the smallest normal number, 1 for a column of zeros
///   transposed[c, r] = saturate(x[r, c] / inverse[c]), computed as x * (1 / inverse)
///
/// A column that contains NaN or infinity has NaN or infinite inverse[c] and a NaN code, so that it shows in products.
/// x [rows, columns], transposed [columns, rows]: 16-byte aligned; rows and columns multiples of 16, elements of 16
/// bits (otherwise cudaErrorInvalidValue). Reads x twice, once for the maxima and once for the codes, unless it gets
/// `maxima` [maxima_rows, columns] of the same type, 16-byte aligned, whose columns have the largest magnitudes of x's.
struct Fp8Columns {
  const void* x = nullptr;
  const void* maxima = nullptr;
  int64_t maxima_rows = 0;
  uint8_t* transposed = nullptr;
  float* inverse = nullptr;    // [columns]
  float* workspace = nullptr;  // [columns], may be uninitialised; 16-byte aligned
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;
};
cudaError_t fp8_columns(const Fp8Columns& arguments, cudaStream_t stream);

/// data = saturate(x * *scale) in E4M3; `scale`: device scalar. Infinities saturate, NaN stays NaN. Any size and
/// alignment.
cudaError_t quantize_values(const void* x, uint8_t* data, const float* scale, int64_t count, Element element,
                            cudaStream_t stream);

/// *amax = max(*amax, max|x|) over `count` elements; NaN counts as larger than every number.
cudaError_t amax(const void* x, int64_t count, Element element, float* amax, cudaStream_t stream);

/// Both FP8 operands that a trained layer's products take from one matrix, in one pass over it: the matrix itself for
/// products that sum over its columns, its transpose for those that sum over its rows (Hopper multiplies FP8 operands
/// along their inner dimension only).
///
///   values     kPlain          v = x
///              kGelu           v = to(T, gelu(z)),            z = bias ? to(T, x + bias) : x
///              kGeluGradient   v = to(T, dy * gelu'(z))
///   data       saturate(v * *scale) [rows, columns],  transposed = its transpose [columns, rows]
///   *amax      raised to max|v|; a NaN or an infinity among the values shows there
///   *inverse   current scaling, with own_amax: *own_amax / max(format), at least the smallest normal number, 1 for
///              zeros; the scale is 1 / *inverse. A NaN or an infinity in *own_amax shows there, so that products with
///              the matrix are NaN
///   sums       to(T, sum of v over rows) [columns]
///
/// x, dy [rows, columns] and bias [columns]: one 16-bit type T, 16-byte aligned; rows and columns multiples of 16
/// (otherwise cudaErrorInvalidValue). gelu as in kernels/gelu/gelu.h. Sums are formed over 128 rows at a time in a
/// fixed order and then added in a fixed order.
enum class OperandValues { kPlain, kGelu, kGeluGradient };

struct Fp8Operands {
  OperandValues values = OperandValues::kPlain;
  const void* x = nullptr;
  const void* bias = nullptr;  // null: none
  const void* dy = nullptr;    // kGeluGradient
  GeluKind gelu = GeluKind::kErf;
  uint8_t* data = nullptr;
  uint8_t* transposed = nullptr;
  const float* scale = nullptr;     // device scalar; null with own_amax
  float* amax = nullptr;            // device scalar or null; keeps its value if that is larger
  const float* own_amax = nullptr;  // device scalar: max|v|, for the scale of the matrix's own; or null
  float* inverse = nullptr;         // device scalar, written with own_amax
  void* sums = nullptr;             // T; null: not computed
  float* workspace = nullptr;       // fp8_operands_workspace() floats if sums are computed
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;
  Fp8Format format = Fp8Format::kE4M3;
};
/// Floats of workspace; it may be uninitialised.
int64_t fp8_operands_workspace(int64_t rows, int64_t columns);
cudaError_t fp8_operands(const Fp8Operands& arguments, cudaStream_t stream);

/// out[c, r] = in[r, c]; rows and columns multiples of 16, both 16-byte aligned (otherwise cudaErrorInvalidValue).
cudaError_t transpose_bytes(const uint8_t* in, uint8_t* out, int64_t rows, int64_t columns, cudaStream_t stream);

}  // namespace trireme::kernels
