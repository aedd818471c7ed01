#pragma once
// Fused self-attention for Hopper (sm_90a), forward and backward:
//
//   s_ij = scale q_i . k_j        for j in the sequence of i, and j <= i when causal
//   p_ij = exp(s_ij - lse_i),     lse_i = log sum_j exp(s_ij)
//   o_i  = sum_j z_ij p_ij v_j    z: dropout multiplier, 0 or 1 / (1 - p); 1 without dropout
//   dv_j = sum_i z_ij p_ij do_i
//   ds_ij = p_ij (z_ij do_i . v_j - delta_i),   delta_i = do_i . o_i
//   dq_i = scale sum_j ds_ij k_j,  dk_j = scale sum_i ds_ij q_i
//
// after Dao et al., FlashAttention-2 (arXiv 2307.08691) and FlashAttention-3 (arXiv 2407.08608).
//
// q, o, do, dq   [tokens, q_heads, d]     k, v, dk, dv  [tokens, kv_heads, d]     bf16 or fp16
// lse            [q_heads, tokens] fp32, natural logarithm
// d 64 or 128; q_heads a multiple of kv_heads; query head h reads key head h / (q_heads / kv_heads).
// Strides of tokens and heads are free multiples of 8 elements; the d elements of a head lie side by side;
// pointers 16-byte aligned. Arithmetic is fp32 but for the two operands of the second product (p and ds), rounded to
// the element type.
//
// Tokens are a pack of sequences; a Plan made from their boundaries says which tiles of work exist, longest first.
// Tiles are whole: a sequence that begins at token b reads the tokens of [b, b + its length rounded up to a multiple of
// 128). What lies there beyond its end is multiplied with zeros. So finite values of other sequences change a result by
// roundings at most, but a NaN or an infinity reaches the sequences before its own that read it: one of v their o, and
// with it dq and dk, one of k their dq, one of q or d_o their dk and dv. It reaches no sequence behind its own and none
// that ends 128 or more tokens before it.
//
// The forward pass, dk and dv are deterministic; so is dq where sums stay on chip. Elsewhere it is summed in fp32 in
// varying order unless `deterministic` is set. Neither pass needs all of its blocks to be on the device at the same
// time: both may run beside other kernels. No allocation, no synchronisation. Launchers return cudaErrorInvalidValue
// for arguments outside these limits and cudaErrorNotSupported for a device that is not Hopper.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace trireme::kernels {

/// One tile of query rows (forward) or of keys (backward): rows first, first + 1, … of the sequence that occupies
/// tokens [begin, end). `padded` is the sequence's first row where each sequence starts at a multiple of 128.
struct alignas(16) AttentionTile {
  int32_t first, begin, end, padded;
  int32_t sequence;
  // Backward, for the order of work: its list (tiles of one sequence or of several), where that begins among all tiles,
  // and its number, which says whether rows are met from the first one up or from the last one down. kShortSequences:
  // always down, so that a sequence's last tile comes last to its rows and can finish their dQ.
  int32_t list_begin, list_count, list;
  static constexpr int32_t kShortSequences = -1;
};

/// Rows of one 64-row block of the padded layout: tokens [first, first + count); count may be 0.
struct AttentionBlock {
  int32_t first, count;
  int32_t is_short;  // whether its sequence's tiles are in a list of short ones
};

/// What a batch's boundaries mean for the kernels; made on the host once a batch, used by every layer.
struct AttentionPlan {
  std::vector<AttentionTile> forward, backward;
  std::vector<AttentionTile>
      sequences;  // first key tiles, the longest sequence first; empty unless all are short enough for sums on chip
  std::vector<AttentionBlock> blocks;
  int64_t short_blocks = 0;
  int64_t tokens = 0, longest = 0;  // of all sequences; of the longest

  int64_t padded_rows() const { return static_cast<int64_t>(blocks.size()) * 64; }
};

/// Query rows of a forward tile, and keys of a backward tile, of a head size.
constexpr int attention_forward_rows(int d, bool causal) { return d == 128 || causal ? 192 : 256; }
constexpr int kAttentionBackwardKeys = 128;
/// Sequences up to this length of heads of 64 that share no keys need no sums of dQ in global memory.
constexpr int kAttentionWholeSequence = 512;

/// cu_seqlens: 0 … tokens, ascending, `count` sequences.
AttentionPlan plan_attention(const int32_t* cu_seqlens, int64_t count, int d, bool causal, int forward_rows = 0);

/// Strides in elements.
struct AttentionStrides {
  int64_t token, head;
};

struct AttentionTensor {
  void* data = nullptr;
  AttentionStrides strides{};
};

/// Decisions are a function of (key, sample of the token's sequence, head, row, column) with row and column inside the
/// sequence, which has up to 65,536 tokens.
struct AttentionDropout {
  uint32_t threshold = 0;  // of 128; 0: no dropout; else d 64, not causal
  uint32_t t0 = 0, t1 = 0;
  const int64_t* sample_ids = nullptr;  // of each sequence, on the device
};

struct AttentionShape {
  int64_t tokens = 0;
  int q_heads = 0, kv_heads = 0, d = 0;
  bool causal = false;
  float scale = 1;
  Element element = Element::kBF16;
};

struct AttentionForward {
  AttentionShape shape;
  AttentionTensor q, k, v, o;
  float* lse = nullptr;
  AttentionDropout dropout;
  const AttentionTile* tiles = nullptr;  // device copy of the plan's
  int64_t tile_count = 0;
  int64_t longest = 0;  // of the plan; decides what is fast, not what is right; 0: unknown, as long as all tokens
  int32_t* counters = nullptr;  // 2 integers, zero before the first launch; every launch leaves them zero
};
cudaError_t attention_forward(const AttentionForward& arguments, cudaStream_t stream);

struct AttentionBackward {
  AttentionShape shape;
  AttentionTensor q, k, v, o, d_o, d_q, d_k, d_v;
  const float* lse = nullptr;
  AttentionDropout dropout;
  const AttentionTile* tiles = nullptr;
  int64_t tile_count = 0;
  const AttentionTile* sequences = nullptr;  // of the plan; 0 if it has none
  int64_t sequence_count = 0;
  const AttentionBlock* blocks = nullptr;
  int64_t block_count = 0, short_blocks = 0;  // of the plan; 0 of the latter is always right, if slower
  void* workspace = nullptr;                  // attention_backward_workspace bytes, any content, 256-byte aligned
  int32_t* counters = nullptr;
  bool deterministic = false;
};
/// For the shape and counts of the arguments; pointers are not looked at.
int64_t attention_backward_workspace(const AttentionBackward& arguments);
cudaError_t attention_backward(const AttentionBackward& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
