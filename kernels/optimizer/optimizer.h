#pragma once
// The optimizers' passes over a flat shard, and the norm of the gradients.

#include "kernels/element.h"
#include "kernels/optimizer/shard_chunks.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

/// A step of an optimizer over a flat shard. Device pointers; multiplier, skip, step: fp32 scalars.
struct ShardUpdate {
  void* master = nullptr;
  void* exp_avg = nullptr;
  void* exp_avg_sq = nullptr;
  const void* gradient = nullptr;
  void* compute = nullptr;            // null: none
  const float* multiplier = nullptr;  // null: 1
  const float* skip = nullptr;        // null: 0
  const float* step = nullptr;
  const ShardChunk* chunks = nullptr;
  int64_t num_chunks = 0;
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  Element gradient_element = Element::kF32;
  Element compute_element = Element::kBF16;
  Element master_element = Element::kF32;  // AdamW: or kBF16, without `compute`
};

/// AdamW over a flat shard in one pass (Loshchilov & Hutter 2019, the order of operations of torch.optim.AdamW):
///
///   g = gradient * *multiplier
///   p = p * (1 - lr * weight_decay)                     if the element has weight decay
///   m = m + (1 - beta1) (g - m),  v = beta2 v + (1 - beta2) g^2
///   p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
///   compute = to(element, p)
///
/// master: fp32 or bf16; exp_avg, exp_avg_sq: fp32 or bf16; gradient: fp32 or 16-bit; compute: 16-bit, fp32 or null,
/// and null with bf16 masters. All have the same indices. The arithmetic is fp32. bf16 results are rounded
/// stochastically, with a probability that is linear in the distance: rounded to nearest, a moment that changes by less
/// than half a unit in the last place (beta2 = 0.999), or a weight of 1 whose updates are below 2^-9, would stand
/// still. The random bits are a hash of first_element + index, *step and, for masters, master_key, so they do not
/// depend on how the tensor is divided. If *skip != 0 nothing changes. *step is t; the caller increments it before the
/// call. amax[t] is raised to the largest magnitude of tensor t's elements in `master`, as they are stored, also where
/// *skip != 0; NaN counts as larger than every number. chunks: num_chunks of shard_chunks.h in device memory; elements
/// outside every chunk are not touched. Any alignment; fast with 16-byte aligned pointers. Deterministic, no
/// allocation, no synchronisation.
struct AdamW : ShardUpdate {
  float* amax = nullptr;                   // fp32 [tensors], set by the caller; null: not written
  Element moment_element = Element::kF32;  // or kBF16
  uint64_t first_element = 0;              // number of element 0, for the random bits
  uint32_t master_key = 0;                 // of the random bits of masters; 0: those of exp_avg
};
cudaError_t adamw(const AdamW& arguments, cudaStream_t stream);

/// LAMB over flat shards in two passes with a reduction between (You et al. 2020, bias correction on):
///
///   lamb_moments   g = gradient * *multiplier,  m = m + (1 - beta1) (g - m),  v = beta2 v + (1 - beta2) g^2
///                  u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + eps) + weight_decay p
///                  (weight_decay 0 if the element has no weight decay)
///                  squares[0, i], squares[1, i] = share * (sum p^2, sum u^2) of tensor i          fp64
///   (the caller adds `squares` over the ranks that hold parts of the same tensors)
///   lamb_apply     p = p - lr r u,  r = |p| / |u| of the element's tensor, 1 if either is 0;
///                  compute = to(element, p)
///
/// The second pass computes u again from m and v: reading them costs as much as storing and reading u would. Arrays as
/// in AdamW, moments fp32; lamb_moments alone reads the gradient, lamb_apply alone writes `compute`. The tables come
/// from make_shard_table(). multiplier, skip, step, lr, betas, eps and weight_decay must be the same for all shards. A
/// shard without chunks needs no arrays but tensor_chunks. If *skip != 0, weights and moments do not change and the
/// sums are 0. Any alignment; fast with 16-byte aligned pointers. Adjacent shards with the same element types share
/// launches. Deterministic, no allocation, no synchronisation.
struct Lamb : ShardUpdate {
  Lamb() { eps = 1e-6; }
  const int32_t* tensor_chunks = nullptr;  // [num_tensors + 1], device
  int num_tensors = 0;
  int first_tensor = 0;  // column of its tensor 0 in `squares`
  double share = 1;
};

/// partial: 2 doubles for each chunk of all shards, 16-byte aligned, overwritten; null if there is none. squares: fp64
/// [2, row], of which the columns of the shards' tensors are written.
cudaError_t lamb_moments(const Lamb* shards, int count, double* partial, double* squares, int64_t row,
                         cudaStream_t stream);
cudaError_t lamb_apply(const Lamb* shards, int count, const double* squares, int64_t row, cudaStream_t stream);

struct GradientBuffer {
  const void* data;
  int64_t count;
  double share = 1.0;  // fraction of its squares that this rank counts, e.g. 1 / copies
};

/// Sum of squares over several buffers, and whether every element is finite:
///
///   *square = sum_i g_i^2        fp64
///
/// Squares of finite fp32 numbers cannot overflow fp64, so *square is finite exactly if every element is; no second
/// flag is needed until the sum over ranks. One launch per 64 buffers plus one; the order of summation is fixed for a
/// device model. workspace: global_norm_workspace() doubles. Any count and alignment. No allocation, no
/// synchronisation.
int64_t global_norm_workspace();
cudaError_t global_square(const GradientBuffer* buffers, int num_buffers, Element element, double* square,
                          double* workspace, cudaStream_t stream);

}  // namespace trireme::kernels
