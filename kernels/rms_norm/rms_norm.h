#pragma once
// Root-mean-square norm (Zhang & Sennrich 2019, rounding as Hugging Face's LlamaRMSNorm).
//
//   forward   rstd = 1 / sqrt(mean(x^2) + eps),  y = to(T, to(T, x * rstd) * w); plus_one: y = to(T, x * rstd * (1 +
//   w)) backward  g = dy * w,  dx = rstd * (g - x * rstd * mean(g * x * rstd)) + d_residual
//             dw = sum over rows of dy * x * rstd;  plus_one: 1 + w in the place of w
//
// x, y, dy, dx, d_residual: [rows, columns]; w: [columns]; device, one element type T; rstd: fp32 [rows]. columns <=
// 16,384. Arithmetic is fp32. Any width and alignment; fast if columns is a multiple of 16 / sizeof(T), pointers are
// 16-byte aligned and fp32 rows have at most 8,192 columns. Deterministic: sums have one fixed order (that of dw
// depends on the number of multiprocessors), no atomics on floats. No allocation, no synchronisation.

#include "kernels/element.h"
#include "kernels/fp8/fp8.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

struct RmsNormForward {
  const void* x = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;      // null if only the FP8 output is needed
  float* rstd = nullptr;  // null: not written
  Fp8Output fp8;          // FP8 codes of y; not with plus_one
  bool plus_one = false;
  int64_t rows = 0, columns = 0;
  float eps = 0;
  Element element = Element::kBF16;
  WantedMaxima maxima{};  // of y; fast kernels of 16 bits without codes find amax
};
cudaError_t rms_norm_forward(const RmsNormForward& arguments, cudaStream_t stream);

struct RmsNormBackward {
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* rstd = nullptr;
  const void* d_residual = nullptr;  // null: none
  void* dx = nullptr;                // null: not written; may be d_residual
  void* dw = nullptr;                // T [columns]; null: not computed
  float* workspace = nullptr;        // rms_norm_backward_workspace() floats if dw is computed
  bool plus_one = false;
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;
};
/// Floats of workspace on the current device; it may be uninitialised.
int64_t rms_norm_backward_workspace(int64_t rows, int64_t columns);
cudaError_t rms_norm_backward(const RmsNormBackward& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
