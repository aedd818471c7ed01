#pragma once
// AdamW over a flat shard in one pass (Loshchilov & Hutter 2019, the order of operations of torch.optim.AdamW):
//
//   g = gradient * *multiplier
//   p = p * (1 - lr * weight_decay)                     if the element has weight decay
//   m = m + (1 - beta1) (g - m),  v = beta2 v + (1 - beta2) g^2
//   p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   compute = to(element, p)
//
// master: fp32; exp_avg, exp_avg_sq: fp32 or bf16; gradient: fp32 or 16-bit; compute: 16-bit, fp32 or null. All have
// the same indices. bf16 moments are rounded stochastically, with a probability that is linear in the distance: rounded
// to nearest, a moment that changes by less than half a unit in the last place (beta2 = 0.999) would stand still. The
// random bits are a hash of first_element + index and *step, so they do not depend on how the tensor is divided. Device
// pointers. multiplier, skip, step: fp32 device scalars. If *skip != 0 nothing changes. *step is t; the caller
// increments it before the call. amax[t] is raised to the largest magnitude of tensor t's elements in `master`, also
// where *skip != 0; NaN counts as larger than every number. chunks: num_chunks of kernels/shard_chunks.h in device
// memory; elements outside every chunk are not touched. Any alignment; fast with 16-byte aligned pointers.
// Deterministic, no allocation, no synchronisation.

#include "kernels/element.h"
#include "kernels/shard_chunks.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

struct AdamW {
  float* master = nullptr;
  void* exp_avg = nullptr;
  void* exp_avg_sq = nullptr;
  const void* gradient = nullptr;
  void* compute = nullptr;
  float* amax = nullptr;              // fp32 [tensors], set by the caller; null: not written
  const float* multiplier = nullptr;  // null: 1
  const float* skip = nullptr;        // null: 0
  const float* step = nullptr;
  const ShardChunk* chunks = nullptr;
  int64_t num_chunks = 0;
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  Element gradient_element = Element::kF32;
  Element compute_element = Element::kBF16;
  Element moment_element = Element::kF32;  // or kBF16
  uint64_t first_element = 0;              // number of element 0, for the random bits
};
cudaError_t adamw(const AdamW& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
