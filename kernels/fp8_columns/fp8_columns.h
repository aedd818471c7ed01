#pragma once
// The columns of a matrix as rows of FP8 codes: the operand of products that sum over its rows, with a scale per
// column.
//
//   inverse[c] = max|x[:, c]| / 448, at least the smallest normal number, 1 for a column of zeros
//   transposed[c, r] = saturate(x[r, c] / inverse[c]), computed as x * (1 / inverse)
//
// A column that contains NaN or infinity has NaN or infinite inverse[c] and a NaN code, so that it shows in products.
// x [rows, columns], transposed [columns, rows] bytes: contiguous, on the device, 16-byte aligned; rows and columns
// multiples of 16 (otherwise cudaErrorInvalidValue). Reads x twice: once for the maxima, once for the codes.
// Deterministic. No allocation, no synchronisation.

#include "kernels/element.h"
#include "kernels/fp8/fp8_output.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

struct Fp8Columns {
  const void* x = nullptr;
  uint8_t* transposed = nullptr;
  float* inverse = nullptr;    // [columns]
  float* workspace = nullptr;  // [columns], may be uninitialised; 16-byte aligned
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;
};
cudaError_t fp8_columns(const Fp8Columns& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
