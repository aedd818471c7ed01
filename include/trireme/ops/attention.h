#pragma once
// Attention inside each sequence of a pack: causal or full, grouped query heads, dropout on the probabilities.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme {

struct AttentionWork;

/// Sequences back to back: sequence i is tokens boundaries[i] … boundaries[i + 1]. Made once a batch, used by every
/// layer.
struct Sequences {
  std::vector<int32_t> boundaries;  // 0 … T, ascending
  std::vector<int64_t> keys;        // names each sequence among all of the run: keys dropout; empty: no dropout
  int64_t longest = 0;
  bool equal_lengths = false;
  at::Tensor boundaries_device, keys_device;  // on GPUs: int32, int64
  std::shared_ptr<AttentionWork> work;        // what our kernels make of the boundaries

  int64_t count() const { return static_cast<int64_t>(boundaries.size()) - 1; }
  int64_t tokens() const { return boundaries.back(); }
};
/// An internal error where boundaries do not ascend from 0, or keys are not one for each sequence (or none).
Sequences make_sequences(std::vector<int32_t> boundaries, std::vector<int64_t> keys, at::Device device);

struct AttentionOptions {
  double scale = 1;
  bool causal = true;
  /// p, seed and stream; its sample ids are not read: a probability's fate is a function of (seed, stream, key of the
  /// sequence, query head, row and column inside the sequence), see attention_keeps().
  Dropout dropout{};
};

/// dropout(softmax(scale q k^T + mask)) v inside each sequence. q [T, N, H], k and v [T, K, H] (views with strides are
/// fine), N a multiple of K; query head n reads key head n / (N / K). Result [T, N, H]. Differentiable.
///
/// GPU, bf16 and fp16: our kernels (sm_90, H 64 or 128, sequences up to 65,536 tokens with dropout) or the library's,
/// whichever was measured faster (the table in attention.cpp); TRIREME_ATTENTION=library|ours decides for all shapes.
/// The library draws dropout from its own generator, seeded from (seed, stream, first key): the same again in a resumed
/// run of the same world size, but another mask. dq may be added in varying order unless deterministic algorithms are
/// asked for. CPU, and fp32 and fp64 anywhere: LibTorch's scaled-dot-product attention one sequence at a time; with
/// dropout or without a causal mask the products written out, with the same decisions as our kernels.
at::Tensor attention(const at::Tensor& q_TNH, const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                     const Sequences& sequences, const AttentionOptions& options);

/// The same on one tensor of all heads [T, N + 2 K, H], laid out q | k | v, contiguous; its gradient is one tensor,
/// too.
at::Tensor attention_of_packed(const at::Tensor& qkv_TPH, int64_t kv_heads, const Sequences& sequences,
                               const AttentionOptions& options);

/// Scores, mask and softmax written out, for each sequence; no dropout; records autograd. Oracle of the tests.
at::Tensor attention_reference(const at::Tensor& q_TNH, const at::Tensor& k_TKH, const at::Tensor& v_TKH,
                               const Sequences& sequences, const AttentionOptions& options);

/// p in 128ths, as dropout on probabilities takes it: dropped where a draw of seven bits is below; kept ones are
/// multiplied by 128 / (128 - threshold). A p that would round to 0 and is not 0, or to 1, is an internal error: the
/// configuration refuses it before (trireme/base/dropout_steps.h).
uint32_t attention_dropout_threshold(double p);

/// Decisions for `length` rows and columns, at most 65,536, of one sequence and head: out[row * length + column] = true: kept.
/// The draw, in 32-bit wrapping arithmetic, mix() and the key (t0, t1) of (seed, stream) as in ops/dropout.h:
///   (h0, h1) = sample hash of the sequence key (k0, k1 of ops/dropout.h);  k0 = mix(h0 ^ (head * 0x9e3779b9 + 1))
///   k1 = mix(k0 ^ h1);  row and column with bit 3 cleared: x = (row << 16 | column) ^ k0
///   x ^= x >> 16;  x *= 0x21f0aaad;  x ^= x >> 15 ^ k1;  x *= 0x735a2d97;  x ^= x >> 15
///   u = low seven bits of byte (bit 3 of row) + 2 (bit 3 of column) of x;  kept when u >= threshold
void attention_keeps(const DropoutKey& key, int64_t sequence_key, uint32_t head, int64_t length, uint32_t threshold,
                     bool* out);

}  // namespace trireme
