#pragma once
// Attention over packs: every token sees all tokens of its own sequence (no causal mask), and no other.

#include "trireme/ops/dropout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme {

struct AttentionWork;

/// Sequences back to back: sequence i is tokens boundaries[i] … boundaries[i + 1].
struct PackLayout {
  std::vector<int32_t> boundaries;     // 0 … T, ascending
  std::vector<int64_t> sequence_keys;  // names each sequence among all of the training run; keys dropout
  int64_t longest = 0;
  // On GPUs:
  at::Tensor boundaries_device;         // int32
  at::Tensor sequence_keys_device;      // int64
  std::shared_ptr<AttentionWork> work;  // what our kernels make of the boundaries, once a batch
};
PackLayout make_pack_layout(std::vector<int32_t> boundaries, std::vector<int64_t> sequence_keys, at::Device device);

/// dropout(softmax(scale q k^T)) v inside each sequence. qkv [T, 3, N, H] contiguous (query, key, value heads of a
/// token); result [T, N * H]. Differentiable, one packed gradient [T, 3, N, H].
///
/// `dropout` gives p and seed; its sample ids are not used. A probability's fate is a function of (seed, stream,
/// sequence key, head, row and column inside the sequence): see attention_keeps(). sm_90, bf16/fp16, heads of 64 (128
/// without dropout), with dropout sequences of up to 65,536 tokens: our kernels (kernels/attention), the same
/// decisions. CPU, and fp32/fp64 anywhere: products written out, the same decisions; a longer sequence with dropout is
/// an internal error there. Otherwise, and on other GPUs, bf16/fp16: LibTorch's variable-length flash attention. It
/// draws from its own generator, which is seeded from (seed, stream, first sequence key): the same again in a resumed
/// run of the same world size, but another mask. On GPUs the query's gradient may add in varying order unless
/// deterministic algorithms are asked for.
at::Tensor pack_attention(const at::Tensor& qkv_T3NH, const PackLayout& layout, double scale, const Dropout& dropout,
                          uint64_t stream);

/// p in 128ths, as dropout on probabilities takes it: dropped where a draw of seven bits is below; kept ones are
/// multiplied by 128 / (128 - threshold). A p that would round to 0 and is not 0, or to 1, is an internal error: the
/// model's configuration refuses it before (trireme/base/dropout_steps.h).
uint32_t attention_dropout_threshold(double p);

/// Decisions for `length` rows and columns, at most 65,536, of one sequence and head: out[row * length + column] =
/// true: kept. The draw, in 32-bit wrapping arithmetic, mix() and the key (t0, t1) of (seed, stream) as in
/// ops/dropout.h:
///   (h0, h1) = sample hash of the sequence key (k0, k1 of ops/dropout.h);  k0 = mix(h0 ^ (head * 0x9e3779b9 + 1));  k1
///   = mix(k0 ^ h1) row and column with bit 3 cleared;  x = (row << 16 | column) ^ k0;  x ^= x >> 16;  x *= 0x21f0aaad;
///   x ^= x >> 15 ^ k1;  x *= 0x735a2d97;  x ^= x >> 15
///   u = low seven bits of byte (bit 3 of row) + 2 (bit 3 of column) of x;  kept when u >= threshold
void attention_keeps(const DropoutKey& key, int64_t sequence_key, uint32_t head, int64_t length, uint32_t threshold,
                     bool* out);

}  // namespace trireme
