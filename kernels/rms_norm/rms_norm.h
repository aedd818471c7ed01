#pragma once
// Root-mean-square norm with a fused residual (Zhang & Sennrich 2019, rounding as Hugging Face's
// LlamaRMSNorm).
//
//   forward   s = residual ? to(T, x + residual) : x,  rstd = 1 / sqrt(mean(s^2) + eps)
//             y = to(T, to(T, s * rstd) * w)
//   backward  g = dy * w,  dx = rstd * (g - s * rstd * mean(g * s * rstd)) + d_residual
//             dw = sum over rows of dy * s * rstd
//
// x, residual, sum, y, dy, dx: [rows, columns]; w: [columns]; device, one element type T; rstd: fp32 [rows]. columns <=
// 16,384. Arithmetic is fp32. Any width and alignment; fast if columns is a multiple of 16 / sizeof(T), pointers are
// 16-byte aligned and fp32 rows have at most 8,192 columns. Deterministic: sums have one fixed order (that of dw
// depends on the number of multiprocessors), no atomics on floats. No allocation, no synchronisation.

#include "kernels/element.h"
#include "kernels/fp8/fp8_output.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

struct RmsNormForward {
  const void* x = nullptr;
  const void* residual = nullptr;  // null: none
  const void* weight = nullptr;
  void* sum = nullptr;    // s; null: not written. May be x or residual
  void* y = nullptr;      // null if only the FP8 output is needed
  float* rstd = nullptr;  // null: not written
  Fp8Output fp8;          // FP8 codes of y
  int64_t rows = 0, columns = 0;
  float eps = 0;
  Element element = Element::kBF16;
};
cudaError_t rms_norm_forward(const RmsNormForward& arguments, cudaStream_t stream);

struct RmsNormBackward {
  const void* dy = nullptr;
  const void* x = nullptr;  // s of the forward pass
  const void* weight = nullptr;
  const float* rstd = nullptr;
  const void* d_residual = nullptr;  // null: none
  void* dx = nullptr;                // null: not written; may be d_residual
  Fp8Output fp8;                     // FP8 codes of dx; only if the weight is frozen
  void* dw = nullptr;                // T [columns]; null: not computed
  float* dw_fp32 = nullptr;          // fp32 [columns], alternative to dw; added to if `accumulate` is set
  bool accumulate = false;
  float* workspace = nullptr;  // rms_norm_backward_workspace() floats if dw or dw_fp32 is computed
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;
};
/// Floats of workspace on the current device; it may be uninitialised.
int64_t rms_norm_backward_workspace(int64_t rows, int64_t columns);
cudaError_t rms_norm_backward(const RmsNormBackward& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
