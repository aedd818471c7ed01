#pragma once
// Cross-entropy of a chunk of logits with its gradient, softmax in fp32:
//
//   lse_t = log sum_v exp(l[t, v]),   loss[t] = w_t (lse_t - l[t, target_t])
//   d_logits[t, v] = g u_t (exp(l[t, v] - lse_t) - [v == target_t])          g = *gradient_scale, or 1
//
// logits    [tokens, vocab] with `stride` elements between rows (stride >= vocab), fp32 or 16-bit
// d_logits  the same layout, of type gradient_element; null: loss only. May be logits itself when
//           the types are equal. Columns from vocab to stride, which a padded vocabulary leaves, become 0
// targets   int64 [tokens], inside the vocabulary wherever w_t != 0;  w = weights fp32 [tokens], null = all 1
// u         gradient_weights fp32 [tokens], null = w
// loss, lse fp32 [tokens]; lse null: not kept
// A token of weight 0 (an ignored label) is not read: loss 0, gradient 0, whatever its logits and
// target are. A target outside the vocabulary with w_t != 0 gives a NaN loss, for the caller's
// non-finite check to see; no memory is touched out of bounds.
// Any vocabulary and alignment. Aligned rows of up to 72 KiB pass through shared memory and are
// read once; longer ones are read twice, the second time mostly from L2. Deterministic; allocates
// nothing, synchronises nothing.

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
  const float* gradient_scale = nullptr;  // device scalar
  float* loss = nullptr;
  float* lse = nullptr;
  int64_t tokens = 0, vocab = 0, stride = 0;
  Element element = Element::kBF16;           // of logits
  Element gradient_element = Element::kBF16;  // of d_logits
};
cudaError_t cross_entropy(const CrossEntropy& arguments, cudaStream_t stream);

/// *total = (accumulate ? *total : 0) + sum of values[0..count), fp64 inside, one fixed order.
cudaError_t sum_values(const float* values, int64_t count, float* total, bool accumulate, cudaStream_t stream);

}  // namespace trireme::kernels
