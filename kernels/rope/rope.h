#pragma once
// Rotary position embedding (Su et al. 2021) on the packed QKV projection, half-split pairs (i, i + d/2):
//
//   x1' = x1 cos - x2 sin,  x2' = x2 cos + x1 sin          direction +1; -1 rotates back
//
// rope_rotate   in place on heads [tokens, heads, d]: the first `rotated` heads of every token are rotated,
//               the rest are unchanged
// rope_merge    the inverse for backward: dq [tokens, q_heads, d], dk, dv [tokens, kv_heads, d],
//               each with its own strides, become d_qkv [tokens, q_heads + 2 kv_heads, d], with dq and
//               dk rotated back
// cos, sin      [tokens, d/2], the element type of the data. fp32 arithmetic. d a multiple of 16,
//               at most 1,024, rows 16-byte aligned.
// No allocation, no synchronisation, deterministic.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

/// Strides in elements from token to token and from head to head.
struct HeadStrides {
  int64_t token, head;
};

cudaError_t rope_rotate(void* heads, const void* cos, const void* sin, int64_t tokens, int num_heads, int rotated,
                        int d, int direction, Element element, cudaStream_t stream);

cudaError_t rope_merge(const void* dq, HeadStrides q_strides, const void* dk, HeadStrides k_strides, const void* dv,
                       HeadStrides v_strides, const void* cos, const void* sin, void* d_qkv, int64_t tokens,
                       int q_heads, int kv_heads, int d, Element element, cudaStream_t stream);

}  // namespace trireme::kernels
