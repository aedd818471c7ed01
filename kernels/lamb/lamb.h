#pragma once
// LAMB over a flat shard in two passes with a reduction between (You et al. 2020, bias correction on):
//
//   lamb_moments   g = gradient * *multiplier,  m = m + (1 - beta1) (g - m),  v = beta2 v + (1 - beta2) g^2
//                  u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps) + weight_decay p
//                  (weight_decay 0 if the element has no weight decay)
//                  partial[chunk] = (sum p^2, sum u^2)
//   lamb_squares   squares[0, i], squares[1, i] = share * the sums of tensor i over its chunks       fp64
//   (the caller adds `squares` over the ranks that hold parts of the same tensors)
//   lamb_apply     p = p - lr r u,  r = |p| / |u| of the element's tensor, 1 if either is 0;
//                  compute = to(element, p)
//
// The second pass computes u again from m and v: reading them costs as much as storing and reading u would. Arrays as
// in kernels/adamw/adamw.h; the chunk table comes from make_shard_table(). If *skip != 0, weights and moments do not
// change and the sums are 0. Any alignment; fast with 16-byte aligned pointers. Deterministic, no allocation, no
// synchronisation.

#include "kernels/element.h"
#include "kernels/shard_chunks.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

struct Lamb {
  float* master = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  const void* gradient = nullptr;     // lamb_moments only
  void* compute = nullptr;            // lamb_apply only; null: none
  const float* multiplier = nullptr;  // null: 1
  const float* skip = nullptr;        // null: 0
  const float* step = nullptr;
  const ShardChunk* chunks = nullptr;
  int64_t num_chunks = 0;
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0;
  Element gradient_element = Element::kF32;
  Element compute_element = Element::kBF16;
};

/// partial: 2 * num_chunks doubles, 16-byte aligned.
cudaError_t lamb_moments(const Lamb& arguments, double* partial, cudaStream_t stream);
/// tensor_chunks: int32 [num_tensors + 1] on the device; squares: fp64 [2, row], of which columns 0 … num_tensors - 1
/// are written.
cudaError_t lamb_squares(const double* partial, const int32_t* tensor_chunks, int num_tensors, double share,
                         double* squares, int64_t row, cudaStream_t stream);
cudaError_t lamb_apply(const Lamb& arguments, const double* squares, int64_t row, cudaStream_t stream);

}  // namespace trireme::kernels
