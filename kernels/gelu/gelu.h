#pragma once
// GELU (Hendrycks & Gimpel 2016), optionally with a bias added to its input.
//
//   forward   z = bias ? to(T, x + bias) : x,   y = to(T, z * P(z))
//             kErf   P(z) = (1 + erf(z / sqrt 2)) / 2
//             kTanh  P(z) = (1 + tanh(sqrt(2 / pi) * (z + 0.044715 z^3))) / 2
//   backward  dx = to(T, dy * (P(z) + z * P'(z))),   d_bias = sum of dx over rows
//
// x, y, dy, dx: [rows, columns]; bias, d_bias: [columns]; device, one element type T. Arithmetic is fp32 with one
// rounding at the end. Any width and alignment; fast with 16-byte aligned rows of whole 16-byte packs and up to 28,672
// columns (fp32: 14,336; with d_bias: 16,384, fp32 8,192). Each input is read once; FP8 outputs with a scale per row
// keep the row in registers or shared memory. No allocation, no synchronisation, deterministic (d_bias: for a given
// number of multiprocessors).

#include "kernels/element.h"
#include "kernels/fp8/fp8_output.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

enum class GeluKind { kErf, kTanh };

/// FP8 codes [rows, columns] of z, with inverse scales fp32 [rows].
struct GeluCodes {
  uint8_t* data = nullptr;  // null: none
  float* inverse = nullptr;
  Fp8Format format = Fp8Format::kE4M3;
};

struct GeluForward {
  const void* x = nullptr;
  const void* bias = nullptr;  // null: none
  void* y = nullptr;           // null: not written
  Fp8Output fp8;               // FP8 codes of y
  GeluCodes saved;             // FP8 codes of z, saved for backward
  GeluKind kind = GeluKind::kErf;
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;
};
cudaError_t gelu_forward(const GeluForward& arguments, cudaStream_t stream);

struct GeluBackward {
  const void* dy = nullptr;
  const void* x = nullptr;  // with bias as in forward; if null, `saved` is used
  const void* bias = nullptr;
  GeluCodes saved;
  void* dx = nullptr;      // null: not written; may be dy
  Fp8Output fp8;           // FP8 codes of dx
  void* d_bias = nullptr;  // T, or fp32 if `fp32` is set; null: not computed. Added to if `accumulate` is set
  bool fp32 = false, accumulate = false;
  float* workspace = nullptr;  // gelu_backward_workspace() floats if d_bias is computed
  GeluKind kind = GeluKind::kErf;
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;
};
/// Floats of workspace on the current device; it may be uninitialised.
int64_t gelu_backward_workspace(int64_t rows, int64_t columns);
cudaError_t gelu_backward(const GeluBackward& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
