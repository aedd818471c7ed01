#pragma once
// Private to ops/: shared by the autograd nodes of attention.

#include "trireme/base/error.h"
#include "trireme/nn/autograd_node.h"
#include "trireme/ops/attention.h"
#include "trireme/ops/rope.h"

#include <ATen/ATen.h>

#include <initializer_list>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace trireme {

/// Attention dropout hashes 16-bit row and column numbers.
inline constexpr int64_t kLongestWithDropout = 65536;

struct Heads {
  at::Tensor q, k, v;  // [T, N, H], [T, K, H], [T, K, H]
};

/// Splits one tensor [T, N + 2 K, H], laid out q | k | v.
inline Heads split_heads(const at::Tensor& packed, int64_t kv_heads) {
  const int64_t n = packed.size(1) - 2 * kv_heads;
  return {packed.narrow(1, 0, n), packed.narrow(1, n, kv_heads), packed.narrow(1, n + kv_heads, kv_heads)};
}

/// Tokens first, first + 1, …
inline at::Tensor tokens_of(const at::Tensor& x, int64_t first, int64_t count) { return x.narrow(0, first, count); }
inline Heads tokens_of(const Heads& x, int64_t first, int64_t count) {
  return {tokens_of(x.q, first, count), tokens_of(x.k, first, count), tokens_of(x.v, first, count)};
}

/// [T, n, H] of sequences of one length S as [T / S, n, S, H], the layout of LibTorch's attention.
inline at::Tensor rows_of(const at::Tensor& x, const Sequences& sequences) {
  return x.unflatten(0, {sequences.count(), sequences.longest}).transpose(1, 2);
}
inline Heads rows_of(const Heads& x, const Sequences& sequences) {
  return {rows_of(x.q, sequences), rows_of(x.k, sequences), rows_of(x.v, sequences)};
}

/// Consecutive sequences of a batch, whose tokens are first, first + 1, …
struct SequenceRange {
  int64_t first = 0;
  Sequences sequences;
};

/// Work lists that the first layer makes for all layers of a batch.
struct AttentionWork {
  /// Work lists on the device for a head size and a mask.
  struct Lists {
    at::Tensor forward, backward, sequences, blocks;  // bytes
    at::Tensor counters;                              // int32 [2]: zero between launches, which share one stream
    int64_t forward_count = 0, backward_count = 0, sequence_count = 0, block_count = 0, short_blocks = 0, longest = 0;
  };
  // by head size, causal, without rows that are not needed, forward in codes
  std::map<std::tuple<int64_t, bool, bool, bool>, Lists> lists;
  std::vector<SequenceRange> ranges;  // backward_ranges()
};

/// Sequences go through backward a range at a time if their sums of dq would take more than attention_sum_rows(), which
/// is what the memory plan counts. Returns the first sequence of each range, and the number of sequences.
std::vector<int64_t> cut_backward(const std::vector<int32_t>& boundaries);
/// The ranges, made at the first call. `sequences` are on a GPU.
const std::vector<SequenceRange>& backward_ranges(const Sequences& sequences);

/// Heads as inputs of a node: three tensors, or one packed tensor.
class HeadInputs {
 public:
  static HeadInputs apart(const Heads& heads, InputList& inputs) {
    HeadInputs result;
    result.q_ = inputs.add(heads.q);
    result.k_ = inputs.add(heads.k);
    result.v_ = inputs.add(heads.v);
    return result;
  }
  static HeadInputs together(const at::Tensor& packed, int64_t kv_heads, InputList& inputs) {
    HeadInputs result;
    result.packed_ = inputs.add(packed);
    result.kv_heads_ = kv_heads;
    return result;
  }

  Heads heads() const {
    return packed_.given() ? split_heads(packed_.value, kv_heads_) : Heads{q_.value, k_.value, v_.value};
  }
  /// Allocates the gradients in the layout of the inputs; set() passes them to autograd once they are written.
  Heads allocate_gradients() {
    if (!packed_.given()) {
      const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
      return {like(q_.value), like(k_.value), like(v_.value)};
    }
    d_packed_ = at::empty(packed_.value.sizes(), packed_.value.options());
    return split_heads(d_packed_, kv_heads_);
  }
  void set(const Heads& d, Gradients& gradients) const {
    if (packed_.given()) return gradients.set(packed_, d_packed_);
    gradients.set(q_, d.q);
    gradients.set(k_, d.k);
    gradients.set(v_, d.v);
  }
  /// Passes gradients that a library allocated. Those of packed heads are copied into one tensor.
  void give(const Heads& d, Gradients& gradients) {
    if (!packed_.given()) return set(d, gradients);
    const Heads joined = allocate_gradients();
    joined.q.copy_(d.q);
    joined.k.copy_(d.k);
    joined.v.copy_(d.v);
    set(joined, gradients);
  }

 private:
  Input packed_, q_, k_, v_;
  int64_t kv_heads_ = 0;
  at::Tensor d_packed_;
};

/// [T, K, H] -> [T, N, H], each key head repeated for its group of query heads.
at::Tensor repeat_heads(const at::Tensor& x_TKH, int64_t heads);

/// The values of the E4M3 codes of AttentionOptions::fp8, in the dtype of the heads [T, n, H]: one scale for each row
/// of the first `rows` heads, one for each other head.
at::Tensor fp8_values(const at::Tensor& heads_TnH, int64_t rows);
/// Whether our kernel multiplies the codes themselves in forward.
bool multiplies_codes(const Heads& heads, const Sequences& sequences, const AttentionOptions& options);

/// Moves the tensors of an earlier call into a node's members; false if there are none.
inline bool take_kept(KeptAttention* kept, std::initializer_list<at::Tensor*> members) {
  if (kept == nullptr || kept->empty()) return false;
  TRIREME_CHECK(kept->size() == members.size(), "attention kept ", kept->size(), " tensors, this implementation reads ",
                members.size());
  auto value = kept->begin();
  for (at::Tensor* member : members) *member = *value++;
  return true;
}

/// What a node of attention takes.
struct AttentionCall {
  HeadInputs inputs;
  Sequences sequences;
  AttentionOptions options;
  KeptAttention* kept;  // read and written in forward
};

/// One implementation of attention each; results [T, N, H].
at::Tensor kernel_attention(AttentionCall call, InputList& inputs);
at::Tensor flash_attention(AttentionCall call, InputList& inputs);
at::Tensor cudnn_attention(AttentionCall call, InputList& inputs);
at::Tensor cpu_attention(AttentionCall call, InputList& inputs);
at::Tensor composed_attention(AttentionCall call, InputList& inputs);

namespace launch {

/// Whether the kernels support these heads with their strides and alignment.
bool attention_fits(const Heads& heads);
/// Whether a kernel computes fp8_values() of these heads, and the kernel.
bool attention_rounds(const at::Tensor& heads_TnH);
at::Tensor attention_round(const at::Tensor& heads_TnH, int64_t rows);
/// o [T, N, H] and the log-sum-exp, fp32 [N, T].
std::pair<at::Tensor, at::Tensor> attention_forward(const Heads& heads, const Sequences& sequences,
                                                    const AttentionOptions& options);
/// Writes the gradients into `d`, shaped like q, k, v, with any strides that the kernels support.
void attention_backward(const at::Tensor& d_o, const Heads& heads, const at::Tensor& o, const at::Tensor& lse,
                        const Sequences& sequences, const AttentionOptions& options, bool deterministic,
                        const Heads& d);

}  // namespace launch

/// The launches of kernels/rope.
namespace launch {

/// Rotates the first `rotated` heads of [T, n, H] in place.
void rope_rotate(const at::Tensor& heads_TnH, const RopeTable& table, int64_t rotated);
/// d_qkv [T, N + 2K, H] from gradients with any strides.
at::Tensor rope_merge(const Heads& d, const RopeTable& table);

}  // namespace launch

}  // namespace trireme
