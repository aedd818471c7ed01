#pragma once
// The formulas of attention.h in fp64 on the host.

#include "kernels/attention/attention.h"

#include <cstdint>
#include <vector>

namespace trireme::kernels::oracle {

struct AttentionInputs {
  std::vector<int32_t> cu_seqlens;
  int q_heads, kv_heads, d;
  bool causal;
  double scale;
  std::vector<double> q, k, v, d_o;  // [tokens, heads, d]
  // Dropout: threshold of 128, 0 for none; see kernels/attention/attention_dropout.cuh.
  uint32_t threshold = 0, t0 = 0, t1 = 0;
  std::vector<int64_t> sample_ids;  // one per sequence
};

struct AttentionOutputs {
  std::vector<double> o, lse, dq, dk, dv;  // lse [q_heads, tokens]
};

AttentionOutputs attention(const AttentionInputs& in);
/// The same at the given tokens only, much faster for long sequences: o and dq [samples, q_heads, d], dk and dv
/// [samples, kv_heads, d]; lse covers all tokens.
AttentionOutputs attention_at(const AttentionInputs& in, const std::vector<int64_t>& samples);

/// Whether dropout keeps the probability at (row, column), counted from the start of a sequence.
bool attention_keeps(int64_t sample, uint32_t t0, uint32_t t1, int head, uint32_t row, uint32_t column,
                     uint32_t threshold);

}  // namespace trireme::kernels::oracle
