#pragma once
// Shared by the attention launchers: tensor maps for the copy engine, and the checks of arguments.

#include "kernels/attention/attention.h"
#include "kernels/attention/tile_queue.cuh"

#include <cuda.h>

#include <algorithm>
#include <array>

namespace trireme::kernels {

/// Encodes a tensor map of [tokens][heads][d], read in boxes of `rows` tokens x `box_heads` heads x 64 elements with
/// the 128-byte swizzle; reads beyond the last token give zeros.
cudaError_t tensor_map(CUtensorMap& map, const AttentionTensor& tensor, int64_t tokens, int heads, int d, int rows,
                       Element element, int box_heads = 1);

/// The same for contiguous codes, whose first extent is the contiguous one, in boxes whose rows have 128 bytes.
cudaError_t tensor_map(CUtensorMap& map, uint8_t* codes, const std::array<int64_t, 3>& extents,
                       const std::array<int, 3>& box);

/// The parts of AttentionForward::workspace. Rows are those of the padded layout.
struct AttentionCodes {
  uint8_t *q, *k, *v;      // [rows, q_heads, d], [rows, kv_heads, d], [kv_heads, d, rows]
  float *q_scales, *amax;  // as in CodeScales
};
AttentionCodes attention_codes(const AttentionForward& a);
cudaError_t make_attention_codes(const AttentionForward& a, cudaStream_t stream);

/// cudaErrorInvalidValue for a shape outside the limits, cudaErrorNotSupported if the device is not Hopper.
cudaError_t check_attention(const AttentionShape& shape);
bool valid_tensor(const AttentionTensor& tensor);

inline bool keeps_sums_on_chip(const AttentionBackward& a) {
  // Not for causal attention with dropout or a window: it serves long sequences and has no on-chip variant.
  return a.sequence_count > 0 && a.shape.d == 64 && a.shape.q_heads == a.shape.kv_heads && a.shape.window == 0 &&
         !(a.shape.causal && a.dropout.threshold > 0);
}

/// The number of query heads whose keys and values of `tokens` tokens fit the L2 cache together; at least those of one
/// key head.
int section_heads(const AttentionShape& shape, int64_t tokens);

constexpr float kLog2E = 1.4426950408889634f;

// The launchers by head size, each in a file of its own so that they compile in parallel.
cudaError_t attention_forward_d64(const AttentionForward& a, cudaStream_t stream);
cudaError_t attention_forward_d128(const AttentionForward& a, cudaStream_t stream);
cudaError_t attention_backward_d64(const AttentionBackward& a, cudaStream_t stream);
cudaError_t attention_backward_d128(const AttentionBackward& a, cudaStream_t stream);

namespace backward {

/// The kernels that run before and after the backward kernel.
struct SideArguments {
  const void *o, *d_o;
  void* dq;
  AttentionStrides o_strides, do_strides, dq_strides;
  const float* lse;
  const AttentionBlock* blocks;
  int64_t block_count, padded_rows, tokens;
  int q_heads;
  float scale, delta_scale;
  float *lse2, *delta;  // [q_heads][padded rows]
  int32_t* turns;       // [q_heads][blocks]; null with sums on chip
  float* dq_sums;       // [q_heads][blocks][2][64 x d / 2 in fragment order]; null with sums on chip
  bool zero;            // whether prepare() zeroes dq_sums
  bool finished;        // whether dQ of short sequences is written already
};

/// Writes delta = delta_scale rowsum(dO o O) and lse log2 e in the padded layout (beyond a sequence 0 and infinity),
/// turns = 0, and if `zero` is set dq_sums = 0.
cudaError_t prepare(const SideArguments& a, int d, Element element, cudaStream_t stream);
/// dq = scale dq_sums, without the blocks of short sequences if `finished` is set.
cudaError_t convert(const SideArguments& a, int d, Element element, cudaStream_t stream);

}  // namespace backward

}  // namespace trireme::kernels
