#pragma once
// Cross-entropy of a chunk of logits with its gradient, softmax in fp32:
//
//   lse_t = log sum_v exp(l[t, v]),   loss[t] = w_t (lse_t - l[t, target_t])
//   d_logits[t, v] = u_t (exp(l[t, v] - lse_t) - [v == target_t])
//
// With label smoothing e over the first V = smoothed_vocab columns (the rest are padding ids):
//
//   loss[t] = w_t (lse_t - (1 - e) l[t, target_t] - e mean_{v < V} l[t, v])
//   d_logits[t, v] = u_t (exp(l[t, v] - lse_t) - (1 - e) [v == target_t] - e / V [v < V])
//
// logits    [tokens, vocab] with `stride` elements between rows (stride >= vocab), fp32 or 16-bit
// d_logits  the same layout and type; null: loss only. May be logits itself. Columns from vocab to stride (padding of
// the vocabulary) are set to 0 targets   int64 [tokens], inside the vocabulary wherever w_t != 0;  w = weights fp32
// [tokens], null = all 1 u         gradient_weights fp32 [tokens], null = w loss      fp32 [tokens] The logits and
// target of a token with weight 0 (an ignored label) are not read; its loss and gradient are 0. A target outside the
// vocabulary with w_t != 0 gives a NaN loss, which the caller's non-finite check finds; no memory out of bounds is read
// or written. Any vocabulary and alignment. Aligned rows of up to 72 KiB are kept in shared memory and read once;
// longer ones are read twice, the second time mostly from L2. Deterministic; no allocation, no synchronisation.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

struct CrossEntropy {
  const void* logits = nullptr;
  void* d_logits = nullptr;
  const int64_t* targets = nullptr;
  const float* weights = nullptr;
  const float* gradient_weights = nullptr;
  float* loss = nullptr;
  int64_t tokens = 0, vocab = 0, stride = 0;
  Element element = Element::kBF16;
  float smoothing = 0.0f;
  int64_t smoothed_vocab = 0;  // only with smoothing
};
cudaError_t cross_entropy(const CrossEntropy& arguments, cudaStream_t stream);

/// *total = sum of values[0..count), fp64 inside, in one fixed order.
cudaError_t sum_values(const float* values, int64_t count, float* total, cudaStream_t stream);

}  // namespace trireme::kernels
