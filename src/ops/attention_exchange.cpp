// Attention of a pass whose tokens are divided among ranks. Two exchanges surround it, with the numbers of ranks c,
// local tokens t, heads N and K, and a rank's heads n and k:
//
//   q k v [t, N + 2 K, H]  -> to each rank its heads of these tokens   -> [T, n + 2 k, H], T = c t
//   o [T, n, H]            -> to each rank its tokens of these heads   -> [t, N, H]
//
// The gradient of an exchange is the same exchange in the other direction.
#include "attention_node.h"
#include "trireme/base/error.h"
#include "trireme/base/profile_range.h"
#include "trireme/nn/sequence_exchange.h"

#include <ATen/ATen.h>

#include <numeric>

namespace trireme {

namespace {

/// [c, t, n, H], parts of ranks -> [t, c n, H], and back; contiguous.
at::Tensor heads_of_parts(const at::Tensor& parts) { return parts.transpose(0, 1).flatten(1, 2).contiguous(); }
at::Tensor parts_of_heads(const at::Tensor& heads, int64_t ranks) {
  return heads.unflatten(1, {ranks, heads.size(1) / ranks}).transpose(0, 1).contiguous();
}

struct TokensForHeads {
  Input q, k, v;
  int64_t all_kv_heads, kv_heads;  // K, k
  SequenceExchange& ranks;

  variable_list forward() {
    const ProfileRange range("exchange");
    const int64_t c = ranks.size(), tokens = q.value.size(0), n = q.value.size(1) / c, h = q.value.size(2);
    const at::Tensor parts = at::empty({c, tokens, n + 2 * kv_heads, h}, q.value.options());
    const auto put = [&](int64_t first, int64_t count, const at::Tensor& heads) {
      parts.narrow(2, first, count).copy_(heads.unflatten(1, {c, count}).transpose(0, 1));
    };
    put(0, n, q.value);
    put(n, kv_heads, repeat_heads(k.value, c * kv_heads));
    put(n + kv_heads, kv_heads, repeat_heads(v.value, c * kv_heads));
    q.value = k.value = v.value = at::Tensor();
    return {at::_unsafe_view(ranks.exchange(parts), {c * tokens, n + 2 * kv_heads, h})};
  }

  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("exchange");
    const int64_t c = ranks.size();
    const at::Tensor d = ranks.exchange(d_outputs[0].contiguous().unflatten(0, {c, d_outputs[0].size(0) / c}));
    const int64_t n = d.size(2) - 2 * kv_heads;
    gradients.set(q, heads_of_parts(d.narrow(2, 0, n)));
    // A key head that several ranks have got the gradients of all of them.
    const auto sum = [&](int64_t first) {
      const at::Tensor heads = heads_of_parts(d.narrow(2, first, kv_heads));
      return heads.size(1) == all_kv_heads ? heads : heads.unflatten(1, {all_kv_heads, -1}).sum(2);
    };
    gradients.set(k, sum(n));
    gradients.set(v, sum(n + kv_heads));
  }
};

struct HeadsForTokens {
  Input o;
  SequenceExchange& ranks;

  variable_list forward() {
    const ProfileRange range("exchange");
    const at::Tensor parts = std::exchange(o.value, {}).contiguous();
    return {heads_of_parts(ranks.exchange(parts.unflatten(0, {ranks.size(), parts.size(0) / ranks.size()})))};
  }
  void backward(const variable_list& d_outputs, Gradients& gradients) {
    const ProfileRange range("exchange");
    gradients.set(o, ranks.exchange(parts_of_heads(d_outputs[0], ranks.size())).flatten(0, 1));
  }
};

}  // namespace

int64_t kv_heads_of_rank(int64_t heads, int64_t kv_heads, int64_t ranks) {
  TRIREME_CHECK(ranks >= 1 && heads % ranks == 0 && heads % kv_heads == 0, heads, " heads and ", kv_heads,
                " key heads over ", ranks, " ranks");
  // Query heads of a rank, in runs that read the same key head.
  const int64_t own = heads / ranks;
  return own / std::gcd(own, heads / kv_heads);
}

at::Tensor attention_over_ranks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const Sequences& sequences, AttentionOptions options, SequenceExchange& ranks,
                                KeptAttention* kept) {
  const int64_t heads = q.size(1), kv_heads = kv_heads_of_rank(heads, k.size(1), ranks.size());
  TRIREME_CHECK(!sequences.boundaries.empty() && sequences.tokens() == q.size(0) * ranks.size(),
                "attention: sequences of ", sequences.boundaries.empty() ? -1 : sequences.tokens(), " tokens, but ",
                ranks.size(), " ranks have ", q.size(0), " each");
  InputList inputs;
  TokensForHeads node{inputs.add(q), inputs.add(k), inputs.add(v), k.size(1), kv_heads, ranks};
  const at::Tensor qkv = run_node(std::move(node), inputs)[0];
  options.first_head = ranks.rank() * (heads / ranks.size());
  InputList outputs;
  HeadsForTokens back{outputs.add(attention_of_packed(qkv, kv_heads, sequences, options, kept)), ranks};
  return run_node(std::move(back), outputs)[0];
}

}  // namespace trireme
