// Attention as separate matrix products and softmax, one sequence at a time: for CPUs, and for fp32 and fp64 on any
// device, with dropout or without a causal mask. Backward recomputes the probabilities.
#include "attention_node.h"
#include "dropout_hash.h"
#include "trireme/base/dropout_steps.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace trireme {

namespace {

at::Tensor times(const at::Tensor& x, const at::Tensor& factors) { return factors.defined() ? x * factors : x; }

struct ComposedAttention {
  HeadInputs inputs;
  Sequences sequences;
  AttentionOptions options;

  /// One sequence's heads as [N, S, H]; keys and values are repeated for their groups.
  struct Part {
    at::Tensor q, k, v;
    int64_t begin, length;
    at::Tensor factors;  // dropout factors [N, S, S]; undefined: no dropout
  };

  Part part(const Heads& heads, int64_t sequence) const {
    const auto i = static_cast<size_t>(sequence);
    const int64_t begin = sequences.boundaries[i], length = sequences.boundaries[i + 1] - begin, n = heads.q.size(1);
    const auto of = [&](const at::Tensor& x) { return repeat_heads(x.narrow(0, begin, length), n).transpose(0, 1); };
    return {of(heads.q), of(heads.k), of(heads.v), begin, length, dropout_factors(heads.q, i, length)};
  }

  at::Tensor dropout_factors(const at::Tensor& q, size_t sequence, int64_t length) const {
    if (!options.dropout.active()) return {};
    const DropoutKey key = dropout_key(options.dropout);
    const uint32_t threshold = attention_dropout_threshold(options.dropout.p);
    at::Tensor kept = at::empty({q.size(1), length, length}, at::TensorOptions(at::kBool));
    for (int64_t head = 0; head < q.size(1); ++head)
      attention_keeps(key, sequences.keys[sequence], static_cast<uint32_t>(head), length, threshold,
                      kept.mutable_data_ptr<bool>() + head * length * length);
    return kept.to(q.options()).mul_(128.0 / (128 - threshold));
  }

  /// Softmax in at least fp32, then converted to the dtype of the products.
  at::Tensor probabilities(const Part& p) const {
    at::Tensor scores = at::matmul(p.q, p.k.transpose(1, 2)).mul_(options.scale);
    if (options.causal) {
      const at::Tensor hidden = at::ones({p.length, p.length}, p.q.options().dtype(at::kBool)).triu_(1);
      scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
    }
    const at::ScalarType type = p.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return at::softmax(scores, -1, type).to(p.q.scalar_type());
  }

  variable_list forward() {
    const Heads heads = inputs.heads();
    at::Tensor out = at::empty(heads.q.sizes(), heads.q.options());
    for (int64_t i = 0; i < sequences.count(); ++i) {
      const Part p = part(heads, i);
      out.narrow(0, p.begin, p.length).copy_(at::matmul(times(probabilities(p), p.factors), p.v).transpose(0, 1));
    }
    return {out};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("attention");
    const Heads heads = inputs.heads(), d = inputs.allocate_gradients();
    const int64_t kv_heads = heads.k.size(1), group = heads.q.size(1) / kv_heads;
    // [N, S, H] into [S, K, H]: a key head's gradient is the sum over its group of query heads.
    const auto put = [&](const at::Tensor& target, const at::Tensor& value, const Part& p) {
      const at::Tensor grouped =
          group == 1 || target.size(1) != kv_heads ? value : value.unflatten(0, {kv_heads, group}).sum(1);
      target.narrow(0, p.begin, p.length).copy_(grouped.transpose(0, 1));
    };
    for (int64_t i = 0; i < sequences.count(); ++i) {
      const Part part_i = part(heads, i);
      const at::Tensor out = d_outputs[0].narrow(0, part_i.begin, part_i.length).transpose(0, 1);  // [N, S, H]
      const at::Tensor p = probabilities(part_i);
      const at::Tensor dv = at::matmul(times(p, part_i.factors).transpose(1, 2), out);
      const at::Tensor dp = times(at::matmul(out, part_i.v.transpose(1, 2)), part_i.factors);
      const at::Tensor ds = (dp - dp.mul(p).sum(-1, true)).mul(p).mul_(options.scale);
      d.q.narrow(0, part_i.begin, part_i.length).copy_(at::matmul(ds, part_i.k).transpose(0, 1));
      put(d.k, at::matmul(ds.transpose(1, 2), part_i.q), part_i);
      put(d.v, dv, part_i);
    }
    inputs.set(d, gradients);
  }
};

}  // namespace

at::Tensor composed_attention(const HeadInputs& heads, InputList& inputs, const Sequences& sequences,
                              const AttentionOptions& options) {
  return run_node(ComposedAttention{heads, sequences, options}, inputs)[0];
}

uint32_t attention_dropout_threshold(double p) {
  TRIREME_CHECK(p >= 0 && p < 1, "dropout probability ", p, " is not in [0, 1)");
  const std::string why = dropout_problem(p, kAttentionDropoutSteps);
  TRIREME_CHECK(why.empty(), "attention dropout probability ", why);
  return dropout_threshold(p, kAttentionDropoutSteps);
}

void attention_keeps(const DropoutKey& key, int64_t sequence_key, uint32_t head, int64_t length, uint32_t threshold,
                     bool* out) {
  TRIREME_CHECK(length <= kLongestWithDropout, "attention dropout uses 16-bit row and column numbers: a sequence of ",
                length, " tokens is longer than ", kLongestWithDropout);
  const auto sample = static_cast<uint64_t>(sequence_key);
  const uint32_t h0 =
      dropout_mix(dropout_mix(static_cast<uint32_t>(sample) ^ key.t0) ^ static_cast<uint32_t>(sample >> 32) ^ key.t1);
  const uint32_t h1 = dropout_mix(h0 + 0x9e3779b9);
  const uint32_t k0 = dropout_mix(h0 ^ (head * 0x9e3779b9 + 1)), k1 = dropout_mix(k0 ^ h1);
  for (int64_t row = 0; row < length; ++row) {
    for (int64_t column = 0; column < length; ++column) {
      uint32_t x = (static_cast<uint32_t>(row & ~8) << 16 | static_cast<uint32_t>(column & ~8)) ^ k0;
      x ^= x >> 16;
      x *= 0x21f0aaad;
      x ^= x >> 15 ^ k1;
      x *= 0x735a2d97;
      x ^= x >> 15;
      const int64_t byte = (row >> 3 & 1) + 2 * (column >> 3 & 1);
      out[row * length + column] = (x >> (8 * byte) & 0x7f) >= threshold;
    }
  }
}

}  // namespace trireme
