#pragma once
// GELU (Hendrycks & Gimpel 2016), optionally with a bias added to its input.
//
//   forward   z = bias ? to(T, x + bias) : x,   y = to(T, z * P(z))
//             kErf   P(z) = (1 + erf(z / sqrt 2)) / 2
//             kTanh  P(z) = (1 + tanh(sqrt(2 / pi) * (z + 0.044715 z^3))) / 2
//   backward  dx = to(T, dy * (P(z) + z * P'(z))),   d_bias = to(T, sum of dx over rows)
//
// x, y, dy, dx: [rows, columns]; bias, d_bias: [columns]; device, one element type T. Arithmetic is fp32 with one
// rounding at the end. Any width and alignment; fast with 16-byte aligned rows of whole 16-byte packs and up to 28,672
// columns (fp32: 14,336; backward: 16,384, fp32 8,192). Each input is read once. No allocation, no synchronisation,
// deterministic (d_bias: for a given number of multiprocessors).

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

enum class GeluKind { kErf, kTanh };

struct GeluForward {
  const void* x = nullptr;
  const void* bias = nullptr;  // null: none
  void* y = nullptr;
  GeluKind kind = GeluKind::kErf;
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;
};
cudaError_t gelu_forward(const GeluForward& arguments, cudaStream_t stream);

struct GeluBackward {
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* bias = nullptr;  // as in forward
  void* dx = nullptr;          // may be dy
  void* d_bias = nullptr;
  float* workspace = nullptr;  // gelu_backward_workspace() floats
  GeluKind kind = GeluKind::kErf;
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;
};
/// Floats of workspace on the current device; it may be uninitialised.
int64_t gelu_backward_workspace(int64_t rows, int64_t columns);
cudaError_t gelu_backward(const GeluBackward& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
