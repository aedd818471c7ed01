#pragma once
// Sums over rows in a fixed order: deterministic. Device pointers. No allocation, no synchronisation.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

/// out[c] = sum over r of partial[r, c], rows in ascending groups of a fixed size: the last step of kernels that write
/// one partial row per block. partial: fp32 [rows, columns] with row stride `stride` in floats; out: [columns] of type
/// `element`; sums are fp32.
cudaError_t column_sum(const float* partial, int64_t rows, int64_t columns, int64_t stride, void* out, Element element,
                       cudaStream_t stream);

/// Several vectors with interleaved partial sums: partial fp32 [rows, count, columns], count <= kMaxColumnSums; a null
/// out is skipped.
constexpr int kMaxColumnSums = 3;
struct ColumnSums {
  void* out[kMaxColumnSums] = {};
  int count = 0;
};
cudaError_t column_sums(const float* partial, int64_t rows, int64_t columns, const ColumnSums& outs, Element element,
                        cudaStream_t stream);

/// Column sums of a matrix, of itself or of its dropout, which is written in the same pass:
///
///   z[r, c]  = dropped ? dropout(x)[r, c] (kernels/dropout/dropout.h) : x[r, c]
///   dropped[r, c] = z[r, c]
///   sums[c]  = to(T, sum over r of z[r, c])
///
/// or of its product with another matrix, while x is scaled by columns (`other` is given):
///
///   dropped[r, c] = to(T, x[r, c] * factors[c])
///   sums[c]  = sum over r of x[r, c] * other[r, c], fp32
///
/// The gradient of a bias is a sum of the first kind: of the gradient of the layer's output, behind the dropout that
/// follows it; the gradient of DoRA's factors is one of the second kind.
///
/// x, dropped  [rows, columns], device, same type T; dropped may be x or null; 16-byte aligned, columns a multiple of
///             16 / sizeof(T)
/// sums        [columns] of type T
/// Sums are fp32, of a fixed number of strips of rows: deterministic for a given number of multiprocessors.
struct MatrixColumnSum {
  const void* x = nullptr;
  void* sums = nullptr;
  float* workspace = nullptr;  // matrix_column_sum_workspace() floats; may be uninitialised
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;

  const void* other = nullptr;     // null: no second matrix; same type and layout as x
  const float* factors = nullptr;  // [columns], with `other`
  void* dropped = nullptr;         // null: no dropout, and no `other`; the fields below are not read
  const int64_t* ids = nullptr;    // [samples] global sample ids; sample s has rows s * rows_of_sample, ...
  int64_t rows_of_sample = 0;      // divides rows
  int64_t first_row = 0;           // index in its sample of each sample's first row here
  uint32_t t0 = 0, t1 = 0, threshold = 0;
  float scale = 1;
};

/// Floats of workspace on the current device.
int64_t matrix_column_sum_workspace(int64_t rows, int64_t columns);
/// cudaErrorInvalidValue for pointers or widths that are not aligned, and for 2^32 rows or more.
cudaError_t matrix_column_sum(const MatrixColumnSum& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
