#pragma once
// Shared by the attention launchers: tensor maps for the copy engine, and the checks of arguments.

#include "kernels/attention/attention.h"
#include "kernels/attention/tile_queue.cuh"

#include <cuda.h>

#include <algorithm>

namespace trireme::kernels {

/// Encodes a tensor map of [tokens][heads][d], read in boxes of `rows` tokens x `box_heads` heads x 64 elements with
/// the 128-byte swizzle; reads beyond the last token give zeros.
cudaError_t tensor_map(CUtensorMap& map, const AttentionTensor& tensor, int64_t tokens, int heads, int d, int rows,
                       Element element, int box_heads = 1);

/// cudaErrorInvalidValue for a shape outside the limits, cudaErrorNotSupported if the device is not Hopper.
cudaError_t check_attention(const AttentionShape& shape);
bool valid_tensor(const AttentionTensor& tensor);

inline bool keeps_sums_on_chip(const AttentionBackward& a) {
  // Not for causal attention with dropout: it serves long sequences and has no on-chip variant.
  return a.sequence_count > 0 && a.shape.d == 64 && a.shape.q_heads == a.shape.kv_heads &&
         !(a.shape.causal && a.dropout.threshold > 0);
}

/// The number of query heads whose keys and values of `tokens` tokens fit the L2 cache together; at least those of one
/// key head.
int section_heads(const AttentionShape& shape, int64_t tokens);

constexpr float kLog2E = 1.4426950408889634f;

}  // namespace trireme::kernels
