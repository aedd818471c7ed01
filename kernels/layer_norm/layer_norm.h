#pragma once
// Layer norm (Ba et al. 2016), optionally with the operations that precede it in a post-norm transformer block (BERT):
// bias, dropout and residual.
//
//   forward   t = bias ? to(T, x + bias) : x,   t = dropout ? to(T, kept(row, c) * t * scale) : t
//             s = residual ? to(T, residual + t) : t
//             mean, var over the row (biased),  rstd = 1 / sqrt(var + eps),  n = (s - mean) * rstd
//             y = to(T, n * gamma + beta)
//   backward  g = dy * gamma,  ds = to(T, rstd * (g - mean(g) - n * mean(g * n)) + d_sum)
//             dx = dropout ? to(T, kept * ds * scale) : ds
//             d_gamma = sum of dy * n,  d_beta = sum of dy,  d_bias = sum of dx, over rows
//
// ds is also the residual's gradient. Matrices [rows, columns] and vectors [columns]: device, one element type T; mean,
// rstd: fp32 [rows]. columns <= 16,384. Arithmetic is fp32. Any width and alignment; fast with columns a multiple of 16
// / sizeof(T) and 16-byte aligned pointers (fp32: up to 8,192 columns; backward with sums over rows: up to 16,384).
// Deterministic: sums have one fixed order (over rows it depends on the number of multiprocessors), no atomics on
// floats; dropout depends only on (key, sample, element). No allocation, no synchronisation.

#include "kernels/element.h"
#include "kernels/fp8/fp8.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

/// As in include/trireme/ops/dropout.h. Row r is row r % rows_per_sample of sample ids[r / rows_per_sample]; a sample
/// has at most 2^33 elements.
struct RowDropout {
  const int64_t* ids = nullptr;  // device, [rows / rows_per_sample]; null: no dropout
  int64_t rows_per_sample = 1;
  uint32_t t0 = 0, t1 = 0, threshold = 0;  // threshold: below 65536, of 65536
  float scale = 1;
};

struct LayerNormForward {
  const void* x = nullptr;
  const void* bias = nullptr;  // null: none
  RowDropout dropout;
  const void* residual = nullptr;  // null: none
  const void* gamma = nullptr;
  const void* beta = nullptr;
  void* sum = nullptr;    // s; null: not written. May be x or residual
  void* y = nullptr;      // null if only the FP8 output is needed
  float* mean = nullptr;  // null: not written
  float* rstd = nullptr;  // null: not written
  Fp8Output fp8;          // FP8 codes of y
  int64_t rows = 0, columns = 0;
  float eps = 0;
  Element element = Element::kBF16;
};
cudaError_t layer_norm_forward(const LayerNormForward& arguments, cudaStream_t stream);

struct LayerNormBackward {
  const void* dy = nullptr;
  const void* sum = nullptr;  // s of the forward pass
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const void* gamma = nullptr;
  RowDropout dropout;
  const void* d_sum = nullptr;  // gradient that reaches s from elsewhere; null: none
  void* ds = nullptr;           // null: not written; may be d_sum
  void* dx = nullptr;           // null: not written; requires dropout, because without dropout dx is ds
  // In place of dx its codes in E5M2, saturate(dx * *codes_scale) [rows, columns], with *codes_amax raised to max|dx|;
  // device scalars. Null: not written. Only where layer_norm_backward_writes_codes().
  uint8_t* codes = nullptr;
  const float* codes_scale = nullptr;
  float* codes_amax = nullptr;
  // Vectors of T; null: not computed.
  void* d_gamma = nullptr;
  void* d_beta = nullptr;
  void* d_bias = nullptr;
  float* workspace = nullptr;  // layer_norm_backward_workspace() floats if one of them is computed
  int64_t rows = 0, columns = 0;
  Element element = Element::kBF16;
};
/// Whether the kernel for these arguments can write codes: with dropout, ds and d_bias, without d_sum, of up to 2,048
/// columns of 16 bits that are aligned.
bool layer_norm_backward_writes_codes(const LayerNormBackward& arguments);
/// Floats of workspace on the current device; it may be uninitialised.
int64_t layer_norm_backward_workspace(int64_t rows, int64_t columns);
cudaError_t layer_norm_backward(const LayerNormBackward& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
