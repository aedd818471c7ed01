#pragma once
// Fused self-attention for Hopper (sm_90a), forward and backward:
//
//   s_ij = scale q_i . k_j        for j in the sequence of i, and j <= i when causal, and j > i - window with a window
//   p_ij = exp(s_ij - lse_i),     lse_i = log sum_j exp(s_ij)
//   o_i  = sum_j z_ij p_ij v_j    z: dropout multiplier, 0 or 1 / (1 - p); 1 without dropout
//   dv_j = sum_i z_ij p_ij do_i
//   ds_ij = p_ij (z_ij do_i . v_j - delta_i),   delta_i = do_i . o_i
//   dq_i = scale sum_j ds_ij k_j,  dk_j = scale sum_i ds_ij q_i
//
// from Dao et al., FlashAttention-2 (arXiv 2307.08691) and FlashAttention-3 (arXiv 2407.08608).
//
// q, o, do, dq   [tokens, q_heads, d]     k, v, dk, dv  [tokens, kv_heads, d]     bf16 or fp16
// lse            [q_heads, tokens] fp32, natural logarithm
// d 64 or 128; q_heads a multiple of kv_heads; query head h reads key head h / (q_heads / kv_heads).
// Token and head strides are any multiples of 8 elements; the d elements of a head are contiguous; pointers are 16-byte
// aligned. Arithmetic is fp32, except that p and ds are rounded to the element type as operands of the second product.
//
// Forward in codes: x is saturate(x 2^e) in E4M3, e the largest integer with which the largest magnitude stays within
// 448, in a row of q (token and head), and in all tokens of a head of k and of v. p is at most 448 and its row's
// largest at least 2^7 before it is rounded; the sum of a row has p before rounding. Every 512 keys the sum of the
// tensor cores, which keep 14 bits, is added to one in fp32. NaN or infinity in a head of k or v makes all results of
// its query heads NaN. Backward, with the o and lse of such a forward, needs the values of the codes as q, k and v:
// with others exp(s - lse) is no probability where scores are large.
//
// The tokens are packed sequences. A plan made from the sequence boundaries lists the tiles of work, longest first.
// Tiles have a fixed size: a sequence that begins at token b reads tokens [b, b + its length rounded up to a multiple
// of 128). The tokens beyond its end are multiplied by zero. Finite values of other sequences therefore change a result
// by rounding errors at most, but NaN or infinity propagates to the earlier sequences that read it: from v to their o
// and so to dq and dk, from k to their dq, from q or d_o to their dk and dv. It never propagates to later sequences or
// to sequences that end 128 or more tokens before it, except in codes, where all sequences share the scale of a head of
// k or v.
//
// o, dk and dv are deterministic. dq is deterministic if its sums stay on chip, if `deterministic` is set, or where the
// fixed order is as fast; otherwise it is summed in fp32 in an order that varies. Neither pass needs all its blocks to
// be resident at the same time, so other kernels may run concurrently. No allocation, no synchronisation. Launchers
// return cudaErrorInvalidValue for arguments outside these limits and cudaErrorNotSupported for a device that is not
// Hopper.

#include "kernels/element.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace trireme::kernels {

/// One tile of query rows (forward) or of keys (backward): rows first, first + 1, … of the sequence that occupies
/// tokens [begin, end). `padded`: the sequence's first row in the padded layout, in which each sequence starts at a
/// multiple of 128.
struct alignas(16) AttentionTile {
  int32_t first, begin, end, padded;
  int32_t sequence;
  // Backward only, for the order of work. A list holds the tiles of one sequence or of several; list_begin is its first
  // tile, list_count its length. `list` is its number, whose parity sets the direction in which query rows are visited;
  // kShortSequences: always last row first, so that the sequence's last tile visits its rows last and can write their
  // dQ.
  int32_t list_begin, list_count, list;
  int32_t rows;  // AttentionPlan::sequences, without a mask: query rows that are visited, from the first
  static constexpr int32_t kShortSequences = -1;
};

/// Rows of one 64-row block of the padded layout: tokens [first, first + count); count may be 0.
struct AttentionBlock {
  int32_t first, count;
  int32_t is_short;  // whether the sequence's tiles are in a kShortSequences list
};

/// The tiles of a batch, computed on the host once a batch from the sequence boundaries and used by every layer.
struct AttentionPlan {
  std::vector<AttentionTile> forward, backward;
  // first key tile of each sequence, longest first; empty unless all are short enough for sums on chip
  std::vector<AttentionTile> sequences;
  std::vector<AttentionBlock> blocks;
  int64_t short_blocks = 0;
  int64_t longest = 0;  // tokens of the longest sequence

  int64_t padded_rows() const { return static_cast<int64_t>(blocks.size()) * 64; }
};

/// Query rows of a forward tile for a head size; below, keys of a backward tile.
constexpr int attention_forward_rows(int d, bool causal, bool codes = false) {
  return codes ? 128 : d == 128 || causal ? 192 : 256;
}
constexpr int kAttentionBackwardKeys = 128;
/// For head size 64 and q_heads == kv_heads, sequences up to this length need no sums of dQ in global memory.
constexpr int kAttentionWholeSequence = 512;

/// cu_seqlens: `count` + 1 ascending token offsets from 0 to tokens. needed: of each sequence how many rows from its
/// first have a result that is read, at least one; null: all. Forward writes o and lse of the other rows or leaves them
/// as they are. Backward reads neither and counts their gradients as zero, but their d_o must be finite. Where sums
/// stay on chip it may leave their dq as it is. codes: the forward multiplies codes; `needed` is null then.
AttentionPlan plan_attention(const int32_t* cu_seqlens, int64_t count, int d, bool causal,
                             const int32_t* needed = nullptr, bool codes = false);

/// Strides in elements.
struct AttentionStrides {
  int64_t token, head;
};

struct AttentionTensor {
  void* data = nullptr;
  AttentionStrides strides{};
};

/// A decision depends on (key, sample of the token's sequence, head, row, column); row and column count from the start
/// of the sequence, which has at most 65,536 tokens.
struct AttentionDropout {
  uint32_t threshold = 0;  // of 128; 0: no dropout. Otherwise d is 64, or d is 128 and causal
  uint32_t t0 = 0, t1 = 0;
  const int64_t* sample_ids = nullptr;  // one per sequence, in device memory
  uint32_t first_head = 0;              // added to the number of a head
};

struct AttentionShape {
  int64_t tokens = 0;
  int q_heads = 0, kv_heads = 0, d = 0;
  bool causal = false;
  float scale = 1;
  Element element = Element::kBF16;
  int window = 0;  // causal only, without dropout: keys that a row sees, its own included; 0: all before it
};

struct AttentionForward {
  AttentionShape shape;
  AttentionTensor q, k, v, o;
  float* lse = nullptr;
  AttentionDropout dropout;
  const AttentionTile* tiles = nullptr;  // device copy of the plan's tiles
  int64_t tile_count = 0;
  int64_t longest = 0;          // from the plan; affects speed only. 0: unknown, treated as all tokens
  int32_t* counters = nullptr;  // 2 integers, zero before the first launch; every launch resets them to zero
  // Not null: the products take E4M3 codes of q, k, v and p, by the plan of codes. d 128, without dropout and window.
  // attention_codes_workspace() bytes, uninitialised, 256-byte aligned.
  void* workspace = nullptr;
  const AttentionBlock* blocks = nullptr;
  int64_t block_count = 0;
};
int64_t attention_codes_workspace(const AttentionShape& shape, int64_t block_count);
cudaError_t attention_forward(const AttentionForward& arguments, cudaStream_t stream);

/// values [tokens, heads, 128] are the values of the codes of x [tokens, heads, 128], in x's type, as above: a scale
/// for each row of the first `rows` heads, as of q, one for each other head, as of k and v. The values of their codes
/// are the same.
struct AttentionRound {
  AttentionTensor x;
  int64_t tokens = 0;
  int heads = 0, rows = 0;
  void* values = nullptr;  // contiguous, 16-byte aligned
  float* amax = nullptr;   // [heads - rows], uninitialised
  Element element = Element::kBF16;
};
cudaError_t attention_round(const AttentionRound& arguments, cudaStream_t stream);

struct AttentionBackward {
  AttentionShape shape;
  AttentionTensor q, k, v, o, d_o, d_q, d_k, d_v;
  const float* lse = nullptr;
  AttentionDropout dropout;
  const AttentionTile* tiles = nullptr;
  int64_t tile_count = 0;
  const AttentionTile* sequences = nullptr;  // from the plan; null if it has none
  int64_t sequence_count = 0;
  const AttentionBlock* blocks = nullptr;
  int64_t block_count = 0, short_blocks = 0;  // from the plan; short_blocks 0 is correct but slower
  void* workspace = nullptr;                  // attention_backward_workspace() bytes, uninitialised, 256-byte aligned
  int32_t* counters = nullptr;
  bool deterministic = false;
};
/// Depends on the shape and counts of `arguments` only; its pointers may be null.
int64_t attention_backward_workspace(const AttentionBackward& arguments);
cudaError_t attention_backward(const AttentionBackward& arguments, cudaStream_t stream);

}  // namespace trireme::kernels
