#pragma once
// A test case of the attention kernels on the device, with its oracle.

#include "kernels/attention/attention.h"

#include "attention_oracle.h"
#include "testing.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace trireme::kernels::testing {

struct AttentionCase {
  std::vector<int32_t> cu_seqlens;
  int q_heads, kv_heads, d;
  bool causal;
  double size = 1;         // of q and k
  uint32_t threshold = 0;  // of dropout, of 128
  int window = 0;
  bool codes = false;  // the forward multiplies E4M3 codes
};

inline std::string name_of(const AttentionCase& c, Element element) {
  std::string name = std::string(testing::name_of(element)) + " d " + std::to_string(c.d) +
                     (c.causal ? " causal" : " full") + " heads " + std::to_string(c.q_heads) + "/" +
                     std::to_string(c.kv_heads) + " dropout " + std::to_string(c.threshold) + " window " +
                     std::to_string(c.window) + (c.codes ? " codes" : "") + " bounds";
  for (const int32_t b : c.cu_seqlens) name += " " + std::to_string(b);
  return name;
}

/// One case on the device: random inputs packed as a fused projection writes them, poisoned outputs.
class AttentionProblem {
 public:
  AttentionProblem(const AttentionCase& c, Element element) : case_(c), element_(element) {
    const int64_t tokens = c.cu_seqlens.back(), heads = c.q_heads + 2 * c.kv_heads;
    in_.cu_seqlens = c.cu_seqlens;
    in_.q_heads = c.q_heads;
    in_.kv_heads = c.kv_heads;
    in_.d = c.d;
    in_.causal = c.causal;
    in_.scale = 1 / std::sqrt(static_cast<double>(c.d));
    in_.threshold = c.threshold;
    in_.window = c.window;
    in_.t0 = 0x1234567;
    in_.t1 = 0x89abcdef;
    in_.first_head = 5;
    for (size_t i = 0; i + 1 < c.cu_seqlens.size(); ++i)
      in_.sample_ids.push_back(static_cast<int64_t>(i * 7919) + (int64_t{5} << 33));
    in_.q = normal_values(tokens * c.q_heads * c.d, element, 1, c.size);
    in_.k = normal_values(tokens * c.kv_heads * c.d, element, 2, c.size);
    in_.v = normal_values(tokens * c.kv_heads * c.d, element, 3);
    in_.d_o = normal_values(tokens * c.q_heads * c.d, element, 4);
    Values fused;
    const auto append = [&](const Values& x, int64_t token, int64_t count) {
      fused.insert(fused.end(), x.begin() + token * count * c.d, x.begin() + (token + 1) * count * c.d);
    };
    for (int64_t t = 0; t < tokens; ++t) {
      append(in_.q, t, c.q_heads);
      append(in_.k, t, c.kv_heads);
      append(in_.v, t, c.kv_heads);
    }
    qkv_ = std::make_unique<DeviceArray>(fused, element);
    d_qkv_ = std::make_unique<DeviceArray>(tokens * heads * c.d, element);
    o_ = std::make_unique<DeviceArray>(tokens * c.q_heads * c.d, element);
    d_o_ = std::make_unique<DeviceArray>(in_.d_o, element);
    lse_ = std::make_unique<DeviceArray>(tokens * c.q_heads, Element::kF32);
    plan_ = plan_attention(c.cu_seqlens.data(), static_cast<int64_t>(c.cu_seqlens.size()) - 1, c.d, c.causal, nullptr,
                           c.codes);
    forward_tiles_ = std::make_unique<DeviceIntegers<AttentionTile>>(plan_.forward);
    backward_tiles_ = std::make_unique<DeviceIntegers<AttentionTile>>(plan_.backward);
    blocks_ = std::make_unique<DeviceIntegers<AttentionBlock>>(plan_.blocks);
    counters_ = std::make_unique<DeviceIntegers<int32_t>>(std::vector<int32_t>{0, 0});
    ids_ = std::make_unique<DeviceIntegers<int64_t>>(in_.sample_ids);
    shape_ = {tokens, c.q_heads, c.kv_heads, c.d, c.causal, static_cast<float>(in_.scale), element, c.window};
    sequences_ = std::make_unique<DeviceIntegers<AttentionTile>>(plan_.sequences);
    workspace_ = std::make_unique<DeviceBytes>(attention_backward_workspace(backward_arguments(false)));
    if (c.codes)
      codes_ =
          std::make_unique<DeviceBytes>(attention_codes_workspace(shape_, static_cast<int64_t>(plan_.blocks.size())));
  }

  AttentionDropout dropout() const {
    return {in_.threshold, in_.t0, in_.t1, ids_->as<int64_t>(), static_cast<uint32_t>(in_.first_head)};
  }
  AttentionForward forward_arguments() const {
    AttentionForward a;
    a.shape = shape_;
    a.q = part(*qkv_, 0);
    a.k = part(*qkv_, case_.q_heads);
    a.v = part(*qkv_, case_.q_heads + case_.kv_heads);
    a.o = {o_->data(), {int64_t{case_.q_heads} * case_.d, case_.d}};
    a.lse = lse_->fp32();
    a.dropout = dropout();
    a.tiles = forward_tiles_->as<AttentionTile>();
    a.tile_count = static_cast<int64_t>(plan_.forward.size());
    a.longest = plan_.longest;
    a.counters = counters_->as<int32_t>();
    if (codes_) {
      a.workspace = codes_->data();
      a.blocks = blocks_->as<AttentionBlock>();
      a.block_count = static_cast<int64_t>(plan_.blocks.size());
    }
    return a;
  }
  cudaError_t forward() { return attention_forward(forward_arguments(), nullptr); }
  /// finishes false: no key tile stores dQ of short sequences itself.
  cudaError_t backward(bool deterministic, bool finishes = true) {
    AttentionBackward a = backward_arguments(deterministic);
    if (!finishes) a.short_blocks = 0;
    return attention_backward(a, nullptr);
  }
  cudaError_t forward_of_unknown_length() {
    AttentionForward a = forward_arguments();
    a.longest = 0;
    return attention_forward(a, nullptr);
  }
  AttentionBackward backward_arguments(bool deterministic) const {
    const AttentionForward f = forward_arguments();
    AttentionBackward a;
    a.shape = shape_;
    a.q = f.q;
    a.k = f.k;
    a.v = f.v;
    a.o = f.o;
    a.d_o = {d_o_->data(), f.o.strides};
    a.d_q = part(*d_qkv_, 0);
    a.d_k = part(*d_qkv_, case_.q_heads);
    a.d_v = part(*d_qkv_, case_.q_heads + case_.kv_heads);
    a.lse = f.lse;
    a.dropout = f.dropout;
    a.tiles = backward_tiles_->as<AttentionTile>();
    a.tile_count = static_cast<int64_t>(plan_.backward.size());
    a.blocks = blocks_->as<AttentionBlock>();
    a.block_count = static_cast<int64_t>(plan_.blocks.size());
    a.short_blocks = plan_.short_blocks;
    a.sequences = sequences_->as<AttentionTile>();
    a.sequence_count = static_cast<int64_t>(plan_.sequences.size());
    a.workspace = workspace_ ? workspace_->data() : nullptr;
    a.counters = f.counters;
    a.deterministic = deterministic;
    return a;
  }
  /// An input tensor, of which all heads of a token can be set.
  enum class Input { kQ, kK, kV, kDo };
  void fill_token(Input input, int64_t token, double value) {
    const bool fused = input != Input::kDo;
    const int64_t heads = case_.q_heads + 2 * case_.kv_heads,
                  first = input == Input::kK   ? case_.q_heads
                          : input == Input::kV ? case_.q_heads + case_.kv_heads
                                               : 0,
                  count = input == Input::kK || input == Input::kV ? case_.kv_heads : case_.q_heads;
    std::vector<unsigned char> bytes(static_cast<size_t>(count * case_.d * 2));
    for (size_t i = 0; i < bytes.size(); i += 2) encode(value, element_, bytes.data() + i);
    char* const to = fused ? qkv_->as<char>() + (token * heads + first) * case_.d * 2
                           : d_o_->as<char>() + token * case_.q_heads * case_.d * 2;
    EXPECT_EQ(cudaMemcpy(to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  const oracle::AttentionInputs& inputs() const { return in_; }
  void poison() {
    o_->poison();
    lse_->poison();
    if (codes_) codes_->poison();
    poison_gradients();
  }
  void poison_gradients() {
    d_qkv_->poison();
    workspace_->poison();
  }
  /// dq, dk or dv: `count` heads starting at `first`.
  Values gradient(int first, int count) const {
    const Values all = d_qkv_->values();
    const int64_t heads = case_.q_heads + 2 * case_.kv_heads;
    Values result;
    for (int64_t t = 0; t < shape_.tokens; ++t)
      result.insert(result.end(), all.begin() + (t * heads + first) * case_.d,
                    all.begin() + (t * heads + first + count) * case_.d);
    return result;
  }
  Values dq() const { return gradient(0, case_.q_heads); }
  Values dk() const { return gradient(case_.q_heads, case_.kv_heads); }
  Values dv() const { return gradient(case_.q_heads + case_.kv_heads, case_.kv_heads); }
  Values o() const { return o_->values(); }
  Values lse() const { return lse_->values(); }
  std::vector<unsigned char> gradient_bytes() const { return d_qkv_->read(); }
  std::vector<unsigned char> o_bytes() const { return o_->read(); }
  oracle::AttentionOutputs expected() const { return oracle::attention(in_); }
  oracle::AttentionOutputs expected_at(const std::vector<int64_t>& samples) const {
    return oracle::attention_at(in_, samples);
  }
  bool counters_are_zero() const {
    const std::vector<unsigned char> bytes = counters_->read();
    return std::all_of(bytes.begin(), bytes.end(), [](unsigned char b) { return b == 0; });
  }

 private:
  AttentionTensor part(const DeviceArray& fused, int head) const {
    const int64_t heads = case_.q_heads + 2 * case_.kv_heads;
    return {static_cast<char*>(fused.data()) + int64_t{head} * case_.d * 2, {heads * case_.d, case_.d}};
  }
  AttentionCase case_;
  Element element_;
  oracle::AttentionInputs in_;
  AttentionPlan plan_;
  AttentionShape shape_;
  std::unique_ptr<DeviceArray> qkv_, d_qkv_, o_, d_o_, lse_;
  std::unique_ptr<DeviceBytes> forward_tiles_, backward_tiles_, sequences_, blocks_, counters_, ids_, workspace_,
      codes_;
};

/// Operands of the second products are rounded once and results once, which gives about two roundings on average.
inline double attention_bound(Element element) { return 1.5 * roundoff(element); }

}  // namespace trireme::kernels::testing
