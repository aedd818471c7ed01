#pragma once
// What the attention launchers share: tensor maps for the copy engine and the checks of arguments.

#include "kernels/attention/attention.h"
#include "kernels/attention/tile_queue.cuh"

#include <cuda.h>

#include <algorithm>

namespace trireme::kernels {

/// The tensor [tokens][heads][d] read in boxes of `rows` tokens by `box_heads` heads by 64 elements, 128-byte swizzle,
/// zeros beyond the last token.
cudaError_t tensor_map(CUtensorMap& map, const AttentionTensor& tensor, int64_t tokens, int heads, int d, int rows,
                       Element element, int box_heads = 1);

/// cudaSuccess, or why the kernels cannot serve.
cudaError_t check_attention(const AttentionShape& shape);
bool valid_tensor(const AttentionTensor& tensor);

inline bool keeps_sums_on_chip(const AttentionBackward& a) {
  // Causal attention with dropout is for long sequences: it has no such variant.
  return a.sequence_count > 0 && a.shape.d == 64 && a.shape.q_heads == a.shape.kv_heads &&
         !(a.shape.causal && a.dropout.threshold > 0);
}

/// Heads whose keys and values of so many tokens fit the L2 cache together; at least those of one key head.
int section_heads(const AttentionShape& shape, int64_t tokens);

constexpr float kLog2E = 1.4426950408889634f;

}  // namespace trireme::kernels
