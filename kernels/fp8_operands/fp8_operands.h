#pragma once
// Both FP8 operands that a trained layer's products take from one matrix, in one pass over it: the matrix itself for
// products that sum over its columns, its transpose for those that sum over its rows (Hopper multiplies FP8 operands
// along their inner dimension only).
//
//   values     kPlain          v = x
//              kGelu           v = to(T, gelu(z)),            z = bias ? to(T, x + bias) : x
//              kGeluGradient   v = to(T, dy * gelu'(z))
//   data       saturate(v * *scale) [rows, columns],  transposed = its transpose [columns, rows]
//   *amax      raised to max|v|; a NaN or an infinity among the values shows there
//   sums       to(T, sum of v over rows) [columns]
//
// x, dy [rows, columns] and bias [columns]: one element type T, contiguous, on the device, 16-byte aligned; rows and
// columns multiples of 16 (otherwise cudaErrorInvalidValue). gelu as in kernels/gelu/gelu.h, codes as in
// kernels/quantize/quantize.h. Deterministic: sums are formed over 128 rows at a time in a fixed order and then added
// in a fixed order. No allocation, no synchronisation.

#include "kernels/element.h"
#include "kernels/fp8/fp8_output.h"
#include "kernels/gelu/gelu.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

enum class OperandValues { kPlain, kGelu, kGeluGradient };

struct Fp8Operands {
  OperandValues values = OperandValues::kPlain;
  const void* x = nullptr;
  const void* bias = nullptr;  // null: none
  const void* dy = nullptr;    // kGeluGradient
  GeluKind gelu = GeluKind::kErf;
  uint8_t* data = nullptr;
  uint8_t* transposed = nullptr;
  const float* scale = nullptr;  // device scalar
  float* amax = nullptr;         // device scalar or null; keeps its value if that is larger
  void* sums = nullptr;          // T; null: not computed
  float* workspace = nullptr;    // fp8_operands_workspace() floats if sums are computed
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;
  Fp8Format format = Fp8Format::kE4M3;
};
/// Floats of workspace; it may be uninitialised.
int64_t fp8_operands_workspace(int64_t rows, int64_t columns);
cudaError_t fp8_operands(const Fp8Operands& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
