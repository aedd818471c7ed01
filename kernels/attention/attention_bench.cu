#include "kernels/attention/attention.h"
#include "kernels/bench/attention_peer.h"
#include "kernels/bench/bench.h"

#include <cmath>
#include <string>
#include <vector>

namespace trireme::kernels {

namespace {

struct Shape {
  std::string name;
  std::vector<int32_t> bounds;
  int q_heads, kv_heads, d;
  bool causal;
  uint32_t threshold;

  bool equal_lengths() const {
    for (size_t i = 1; i < bounds.size(); ++i)
      if (bounds[i] - bounds[i - 1] != bounds[1]) return false;
    return true;
  }
};

std::vector<int32_t> rows(int count, int length) {
  std::vector<int32_t> bounds;
  for (int i = 0; i <= count; ++i) bounds.push_back(i * length);
  return bounds;
}

/// 48 rows of 512 tokens with one, two and three sequences in turn, two on average.
std::vector<int32_t> packed_rows() {
  std::vector<int32_t> bounds{0};
  for (int row = 0; row < 48; ++row) {
    const int begin = row * 512, shift = 8 * (row % 16);
    if (row % 3 == 1) bounds.push_back(begin + 180 + shift);
    if (row % 3 == 2) bounds.insert(bounds.end(), {begin + 120 + shift, begin + 330 + shift});
    bounds.push_back(begin + 512);
  }
  return bounds;
}

/// `count` documents of unequal length in 8,192 tokens.
std::vector<int32_t> documents(int count) {
  std::vector<int32_t> bounds{0};
  for (int i = 1; i < count; ++i) bounds.push_back(8192 * i / count + (i % 5 - 2) * (8192 / count / 8));
  bounds.push_back(8192);
  return bounds;
}

template <class T>
const T* upload(bench::Memory& memory, const std::vector<T>& values) {
  void* device = memory.raw(static_cast<int64_t>(values.size() * sizeof(T)));
  bench::check(cudaMemcpy(device, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "attention bench");
  return static_cast<const T*>(device);
}

}  // namespace

TRIREME_BENCH(attention) {
  if (!recorder.wants("attention forward (TFLOP/s)") && !recorder.wants("attention backward (TFLOP/s)") &&
      !recorder.wants("attention forward in codes (TFLOP/s)"))
    return;
  std::vector<Shape> shapes{{"70B 1 x 8192", rows(1, 8192), 64, 8, 128, true, 0},
                            {"70B 8 x 2048", rows(8, 2048), 64, 8, 128, true, 0},
                            {"7B 2 x 4096", rows(2, 4096), 32, 32, 128, true, 0},
                            {"8B 1 x 8192", rows(1, 8192), 32, 8, 128, true, 0},
                            {"8B 1 x 131072, 8 of its heads", rows(1, 131072), 8, 2, 128, true, 0},
                            {"8B 1 x 524288, 4 of its heads", rows(1, 524288), 4, 1, 128, true, 0},
                            {"BERT 48 x 512", rows(48, 512), 16, 16, 64, false, 0},
                            {"BERT 48 x 512 packed, dropout", packed_rows(), 16, 16, 64, false, 13},
                            {"GPT 126M 4 x 2048", rows(4, 2048), 12, 12, 64, true, 0},
                            {"GPT 126M 4 x 2048, dropout", rows(4, 2048), 12, 12, 64, true, 13},
                            {"GPT 5B 4 x 2048, dropout", rows(4, 2048), 32, 32, 128, true, 13}};
  for (const int count : {2, 5, 10, 20, 40})
    shapes.push_back({"70B 8192 in " + std::to_string(count) + " documents", documents(count), 64, 8, 128, true, 0});
  for (const Shape& s : shapes) {
    bench::Memory memory;
    const int64_t tokens = s.bounds.back(), sequences = static_cast<int64_t>(s.bounds.size()) - 1;
    const AttentionPlan plan = plan_attention(s.bounds.data(), sequences, s.d, s.causal);
    const auto tensor = [&](int heads) {
      return AttentionTensor{memory.normal(tokens * heads * s.d, Element::kBF16), {int64_t{heads} * s.d, s.d}};
    };
    AttentionForward f;
    f.shape = {tokens, s.q_heads, s.kv_heads, s.d, s.causal, 1 / std::sqrt(static_cast<float>(s.d)), Element::kBF16};
    f.q = tensor(s.q_heads);
    f.k = tensor(s.kv_heads);
    f.v = tensor(s.kv_heads);
    f.o = tensor(s.q_heads);
    f.lse = static_cast<float*>(memory.raw(tokens * s.q_heads * 4));
    f.dropout = {s.threshold, 1, 2, memory.integers(sequences, 1 << 30)};
    f.tiles = upload(memory, plan.forward);
    f.tile_count = static_cast<int64_t>(plan.forward.size());
    f.longest = plan.longest;
    f.counters = const_cast<int32_t*>(upload(memory, std::vector<int32_t>{0, 0}));
    AttentionBackward b;
    b.shape = f.shape;
    b.q = f.q;
    b.k = f.k;
    b.v = f.v;
    b.o = f.o;
    b.d_o = tensor(s.q_heads);
    b.d_q = tensor(s.q_heads);
    b.d_k = tensor(s.kv_heads);
    b.d_v = tensor(s.kv_heads);
    b.lse = f.lse;
    b.dropout = f.dropout;
    b.tiles = upload(memory, plan.backward);
    b.tile_count = static_cast<int64_t>(plan.backward.size());
    b.blocks = upload(memory, plan.blocks);
    b.block_count = static_cast<int64_t>(plan.blocks.size());
    b.short_blocks = plan.short_blocks;
    b.sequences = upload(memory, plan.sequences);
    b.sequence_count = static_cast<int64_t>(plan.sequences.size());
    b.workspace = memory.raw(attention_backward_workspace(b));
    b.counters = f.counters;
    AttentionForward codes = f;
    const bool has_codes = s.d == 128 && s.threshold == 0;
    if (has_codes) {
      const AttentionPlan of_codes = plan_attention(s.bounds.data(), sequences, s.d, s.causal, nullptr, true);
      codes.tiles = upload(memory, of_codes.forward);
      codes.tile_count = static_cast<int64_t>(of_codes.forward.size());
      codes.blocks = b.blocks;
      codes.block_count = b.block_count;
      codes.workspace = memory.raw(attention_codes_workspace(f.shape, b.block_count));
    }
    double scores = 0;
    for (int64_t i = 0; i < sequences; ++i) {
      const double length = s.bounds[static_cast<size_t>(i) + 1] - s.bounds[static_cast<size_t>(i)];
      scores += length * length * (s.causal ? 0.5 : 1);
    }
    // Counts operations, not bytes: rows with TFLOP/s in their name are reported in that unit.
    const double work = 4 * scores * s.d * s.q_heads;
    AttentionBackward deterministic = b;
    deterministic.deterministic = true;
    // What the caller does once a batch: make a plan and copy its lists to the device.
    const auto plan_again = [&] {
      const AttentionPlan again = plan_attention(s.bounds.data(), sequences, s.d, s.causal);
      const auto copy = [](const auto* to, const auto& from) {
        bench::check(cudaMemcpyAsync(const_cast<void*>(static_cast<const void*>(to)), from.data(),
                                     from.size() * sizeof(from[0]), cudaMemcpyHostToDevice, nullptr),
                     "attention bench");
      };
      copy(f.tiles, again.forward);
      copy(b.tiles, again.backward);
      copy(b.blocks, again.blocks);
      copy(b.sequences, again.sequences);
    };
    const auto forward = [&] { return attention_forward(f, nullptr); };
    const auto backward = [&](const AttentionBackward& arguments) {
      return [&] { return attention_backward(arguments, nullptr); };
    };
    const auto planned = [&](const auto& launch) {
      return [&plan_again, launch] {
        plan_again();
        return launch();
      };
    };
    const std::string text = "attention forward (TFLOP/s)", back_text = "attention backward (TFLOP/s)";
    bench::check(forward(), text.c_str());
    std::vector<bench::Contender> ways{{text, forward, planned(forward)}},
        back_ways{
            {back_text, backward(b), planned(backward(b))},
            {"attention backward, deterministic (TFLOP/s)", backward(deterministic), planned(backward(deterministic))}};
    if (has_codes)
      ways.push_back({"attention forward in codes (TFLOP/s)", [&] { return attention_forward(codes, nullptr); }, {}});
    if (bench::attention_peer != nullptr) {
      const bench::AttentionPeer peer = bench::attention_peer(
          {s.bounds, s.equal_lengths(), s.q_heads, s.kv_heads, s.d, s.causal, s.threshold / 128.0});
      ways.push_back({peer.name + " " + text, peer.forward, {}, true});
      back_ways.push_back({peer.name + " " + back_text, peer.backward, {}, true});
    }
    recorder.alternate(ways, s.name, Element::kBF16, work);
    recorder.alternate(back_ways, s.name, Element::kBF16, 2.5 * work);
  }
}

}  // namespace trireme::kernels
