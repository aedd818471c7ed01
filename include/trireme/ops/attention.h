#pragma once
// Attention inside each of several packed sequences: causal, over all tokens before or a window of them, or full;
// grouped query heads, dropout on the probabilities.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace trireme {

struct AttentionWork;
class SequenceExchange;

/// Packed sequences: sequence i is tokens boundaries[i] … boundaries[i + 1] - 1. Made once a batch, used by every
/// layer.
struct Sequences {
  std::vector<int32_t> boundaries;  // 0 … T, ascending
  std::vector<int64_t> keys;        // unique id of each sequence in the run, the key of its dropout; empty: no dropout
  int64_t longest = 0;
  bool equal_lengths = false;
  std::vector<int32_t> needed;  // AttentionOptions::only_needed: how many rows of each, from its first; empty: all
  at::Tensor boundaries_device, keys_device;  // on GPUs only: int32, int64
  std::shared_ptr<AttentionWork> work;        // work lists of our kernels, made when they are first used

  int64_t count() const { return static_cast<int64_t>(boundaries.size()) - 1; }
  int64_t tokens() const { return boundaries.back(); }
};
/// Moves the description to `device`. Boundaries that do not ascend from 0, a number of keys or of `needed` that is
/// neither 0 nor the number of sequences, and a count in `needed` that is not in 1 … length, are internal errors.
Sequences make_sequences(std::vector<int32_t> boundaries, std::vector<int64_t> keys, at::Device device,
                         std::vector<int32_t> needed = {});

struct AttentionOptions {
  double scale = 1;
  bool causal = true;
  int64_t window = 0;  // causal only: tokens that a row sees, itself included; 0: all before it
  /// p, seed and stream; sample_ids_B is ignored. A decision depends on (seed, stream, key of the sequence, query head,
  /// row and column in the sequence), see attention_keeps().
  Dropout dropout{};
  int64_t first_head = 0;  // the number of q's first head among the layer's, for dropout
  /// Of the result only the rows that Sequences::needed counts are read. Others may hold anything, NaN too. The caller
  /// gives zero as their gradients.
  bool only_needed = false;
  /// q, k and v are rounded to E4M3 codes. The scale is a power of two, the largest that keeps the numbers within 448:
  /// one for each row of q (token and head), one for each head of k and of v over all tokens of the call. A NaN or an
  /// infinity is a NaN (fp16: from 63,488 on values are infinite); where a kernel rounds (Hopper GPUs, H 128) so is its
  /// whole row or head. Forward's products take the codes, backward's their values: with q and k as they were exp(s -
  /// lse) would be no probability where scores are large. The gradients of the values are those of q, k and v.
  bool fp8 = false;
};

/// ConfigError where TRIREME_ATTENTION has none of its words.
void check_attention_setting();

/// What keeps attention with AttentionOptions::fp8 from multiplying codes in sequences of `mean_length` tokens on
/// average, as a clause; null: nothing does.
const char* fp8_obstacle(at::Device device, at::ScalarType dtype, int64_t head_dim, bool dropout, bool window,
                         int64_t mean_length);

/// What attention leaves for a second call that does not run its forward again.
using KeptAttention = std::vector<at::Tensor>;

/// dropout(softmax(scale q k^T + mask)) v in each sequence. q [T, N, H], k and v [T, K, H] (any strides), one floating
/// dtype, N a multiple of K; query head n reads key head n / (N / K). Result [T, N, H]. Differentiable. Shapes that do
/// not fit each other or the sequences, and dropout without keys, are internal errors.
///
/// GPU, bf16 and fp16: our kernels (KernelClass::kHopper, H 64 or 128; with dropout sequences of up to 65,536 tokens,
/// and H 64 if not causal, and no window) or the library's, whichever is faster by measurement (table in
/// attention.cpp). Of the library cuDNN's attention with compute capability 9.x and 10.x, for causal sequences of equal
/// length without dropout, window and deterministic algorithms; flash attention for all others.
/// TRIREME_ATTENTION=library|flash|ours overrides the table: `library` and `flash` take the library's, `flash` never
/// cuDNN's. All skip the tiles outside a window. The library draws dropout from its own generator, seeded from (seed,
/// stream, first key): a resumed run of the same world size gets the same mask, which differs from our kernels' mask.
/// The order of the sums of dq varies unless deterministic algorithms are requested.
///
/// AttentionOptions::fp8: our kernel with H 128 and without dropout and window multiplies the codes of sequences of
/// 8,192 tokens or more on average (with TRIREME_ATTENTION=ours of all), and rounds the probabilities to E4M3, too. All
/// other implementations take the codes' values in the heads' dtype, and do not round probabilities.
///
/// CPU, and fp32 and fp64 on any device: LibTorch's scaled_dot_product_attention, one sequence at a time, with a mask
/// where a window is shorter than the sequence; with dropout or without a causal mask separate products and softmax,
/// with the same dropout decisions as our kernels.
///
/// `kept`, if not null: an empty list gets what a later call with equal arguments needs to continue without the
/// forward: the result, and what the backward of this implementation reads beside q, k and v (the log-sum-exp, fp32 [N,
/// T]). A list with these tensors gives the result as it is. The list stays empty, and the later call runs the forward
/// again, for fp32 and fp64 with a causal mask and without dropout on a GPU.
at::Tensor attention(const at::Tensor& q_TNH, const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                     const Sequences& sequences, const AttentionOptions& options, KeptAttention* kept = nullptr);

/// The same for one contiguous tensor of all heads [T, N + 2 K, H], laid out q | k | v; its gradient is one tensor too.
at::Tensor attention_of_packed(const at::Tensor& qkv_TPH, int64_t kv_heads, const Sequences& sequences,
                               const AttentionOptions& options, KeptAttention* kept = nullptr);

/// Rows of fp32 sums of dq, in all heads, that backward holds for so many tokens: our kernels and the library's have up
/// to 128 rows more than a sequence has tokens. Short sequences that would take more go through backward in turns.
constexpr int64_t attention_sum_rows(int64_t tokens) {
  return tokens + std::min(tokens, std::max<int64_t>(32768, tokens / 16));
}

/// attention() of a pass whose tokens are divided among ranks: of q, k, v and the result a rank has its slice of the
/// tokens, and all heads; `sequences` are of the whole pass. The ranks exchange heads for tokens, attend to whole
/// sequences with a part of the heads each, and exchange back. A key head is sent to every rank whose query heads read
/// it. N that does not divide over the ranks is an internal error. Differentiable; `ranks` outlives the graph. `kept`:
/// as in attention(), of the rank's heads.
at::Tensor attention_over_ranks(const at::Tensor& q_TNH, const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                                const Sequences& sequences, AttentionOptions options, SequenceExchange& ranks,
                                KeptAttention* kept = nullptr);
/// The number of key heads that a rank then has.
int64_t kv_heads_of_rank(int64_t heads, int64_t kv_heads, int64_t ranks);

/// round(128 p): dropout on probabilities drops an element if its 7-bit draw is below this threshold and multiplies the
/// others by 128 / (128 - threshold). A p above 0 that rounds to 0, or a p that rounds to 1, is an internal error; the
/// configuration rejects it earlier (trireme/base/dropout_steps.h).
uint32_t attention_dropout_threshold(double p);

/// Dropout decisions for `length` rows and columns (at most 65,536) of one sequence and head: out[row * length +
/// column] is true if the probability is kept. The draw, in 32-bit wrapping arithmetic, with mix() and the key (t0, t1)
/// of (seed, stream) from ops/dropout.h:
///   (h0, h1) = sample hash of the sequence key (k0, k1 of ops/dropout.h);  k0 = mix(h0 ^ (head * 0x9e3779b9 + 1))
///   k1 = mix(k0 ^ h1);  row and column with bit 3 cleared: x = (row << 16 | column) ^ k0
///   x ^= x >> 16;  x *= 0x21f0aaad;  x ^= x >> 15 ^ k1;  x *= 0x735a2d97;  x ^= x >> 15
///   u = low seven bits of byte (bit 3 of row) + 2 (bit 3 of column) of x;  kept if u >= threshold
void attention_keeps(const DropoutKey& key, int64_t sequence_key, uint32_t head, int64_t length, uint32_t threshold,
                     bool* out);

}  // namespace trireme
