#include "kernels/optimizer/optimizer.h"

#include "optimizer_oracle.h"
#include "testing.h"

#include <algorithm>

namespace trireme::kernels::testing::adamw_tests {

namespace {

class AdamWTest : public KernelTest {
 protected:
  struct Case {
    int64_t count, shift;
    std::vector<ShardPiece> pieces;
    Element gradient, compute;
  };

  static void check(const Case& c) {
    SCOPED_TRACE(std::to_string(c.count) + " elements, shift " + std::to_string(c.shift) + ", " +
                 std::to_string(c.pieces.size()) + " pieces");
    const Values before = normal_values(c.count, Element::kF32, 1);
    oracle::AdamWState state{before, Values(c.count, 0.0), Values(c.count, 0.0)};
    std::vector<bool> decays(c.count), inside(c.count);
    int tensors = 0;
    for (const ShardPiece& piece : c.pieces) {
      tensors = std::max(tensors, piece.tensor + 1);
      for (int64_t i = piece.begin; i < piece.end; ++i) inside[i] = true, decays[i] = piece.decays;
    }
    const ShardTable table = make_shard_table(c.pieces, tensors);
    DeviceBytes chunks(static_cast<int64_t>(table.chunks.size() * sizeof(ShardChunk)));
    chunks.write(table.chunks.data());
    const int unused = 1;  // a tensor without elements
    DeviceArray p(state.master, Element::kF32, c.shift), m(state.exp_avg, Element::kF32, c.shift),
        v(state.exp_avg_sq, Element::kF32, c.shift), compute(c.count, c.compute, c.shift);
    for (int step = 1; step <= 10; ++step) {
      const Values g = normal_values(c.count, c.gradient, 10 + step, 0.1);
      DeviceArray gradient(g, c.gradient, c.shift), multiplier(Values{0.25}, Element::kF32),
          steps(Values{static_cast<double>(step)}, Element::kF32), skip(Values{0.0}, Element::kF32);
      DeviceArray amax(Values(tensors + unused, 0.0), Element::kF32);
      AdamW a;
      a.master = p.fp32(), a.exp_avg = m.fp32(), a.exp_avg_sq = v.fp32(), a.gradient = gradient.data(),
      a.compute = compute.data(), a.amax = amax.fp32();
      a.multiplier = multiplier.fp32(), a.skip = skip.fp32(), a.step = steps.fp32();
      a.chunks = chunks.as<ShardChunk>(), a.num_chunks = static_cast<int64_t>(table.chunks.size());
      a.lr = 1e-3, a.beta2 = 0.95, a.weight_decay = 0.5, a.gradient_element = c.gradient, a.compute_element = c.compute;
      CUDA_OK(adamw(a, nullptr));
      oracle::adamw(state, g, decays, 0.25, step, a.lr, a.beta1, a.beta2, a.eps, a.weight_decay);
      cudaDeviceSynchronize();
      const Values now = p.values();
      Values top(tensors + unused, 0.0);
      for (const ShardPiece& piece : c.pieces)
        for (int64_t i = piece.begin; i < piece.end; ++i)
          top[piece.tensor] = std::max(top[piece.tensor], std::abs(now[i]));
      EXPECT_EQ(amax.values(), top) << "step " << step;
    }
    // Elements that no piece covers do not change.
    for (int64_t i = 0; i < c.count; ++i)
      if (!inside[i]) state.master[i] = before[i], state.exp_avg[i] = state.exp_avg_sq[i] = 0;
    const Values master = p.values(), copy = compute.values();
    expect_close(master, state.master, Element::kF32, 0, 2e-7, "master");
    expect_close(m.values(), state.exp_avg, Element::kF32, 0, 1e-8, "exp_avg");
    expect_close(v.values(), state.exp_avg_sq, Element::kF32, 0, 1e-9, "exp_avg_sq");
    for (int64_t i = 0; i < c.count; ++i) {
      if (inside[i])
        ASSERT_EQ(copy[i], round_to(master[i], c.compute)) << i;
      else
        ASSERT_TRUE(std::isnan(copy[i])) << i;
    }
  }
};

TEST_F(AdamWTest, MatchesTheOracleOverTenSteps) {
  check({1, 0, {{0, 1, 0, true}}, Element::kF32, Element::kBF16});
  check({4096, 0, {{0, 4096, 0, true}}, Element::kF32, Element::kBF16});
  check({20000,
         0,
         {{0, 17, 0, false}, {17, 1023, 1, true}, {1023, 4000, 2, false}, {4000, 20000, 3, true}},
         Element::kF32,
         Element::kF16});
  check({4099, 0, {{0, 4, 0, true}, {4, 8, 1, false}, {8, 4099, 2, true}}, Element::kBF16, Element::kBF16});
  check({4096, 1, {{0, 100, 0, true}, {100, 4096, 1, false}}, Element::kF16, Element::kF32});
}

TEST_F(AdamWTest, LeavesThePaddingAlone) {
  check({9000,
         0,
         {{3, 11, 1, true}, {16, 18, 0, false}, {19, 20, 2, true}, {4093, 8191, 3, true}},
         Element::kF32,
         Element::kBF16});
}

TEST_F(AdamWTest, ManySmallTensors) {
  std::vector<ShardPiece> pieces;
  for (int i = 0; i < 1000; ++i) pieces.push_back({i * 9 + 3, i * 9 + 12, i, i % 2 == 0});
  check({10000, 0, pieces, Element::kF32, Element::kBF16});
}

TEST_F(AdamWTest, SkipLeavesEverythingAlone) {
  const int64_t n = 1000;
  const Values before = normal_values(n, Element::kF32, 1);
  DeviceArray p(before, Element::kF32), m(before, Element::kF32), v(before, Element::kF32),
      g(Values(n, std::nan("")), Element::kF32), compute(before, Element::kBF16), skip(Values{1.0}, Element::kF32),
      step(Values{1.0}, Element::kF32);
  const Values compute_before = compute.values();
  const ShardTable table = make_shard_table({{0, n, 0, true}}, 1);
  DeviceBytes chunks(static_cast<int64_t>(table.chunks.size() * sizeof(ShardChunk)));
  chunks.write(table.chunks.data());
  AdamW a;
  a.master = p.fp32(), a.exp_avg = m.fp32(), a.exp_avg_sq = v.fp32(), a.gradient = g.data(), a.compute = compute.data(),
  a.skip = skip.fp32(), a.step = step.fp32();
  a.chunks = chunks.as<ShardChunk>(), a.num_chunks = 1, a.lr = 1;
  CUDA_OK(adamw(a, nullptr));
  EXPECT_EQ(p.values(), before);
  EXPECT_EQ(m.values(), before);
  EXPECT_EQ(v.values(), before);
  EXPECT_EQ(compute.values(), compute_before);
  // The amax of weights that stay is theirs.
  DeviceArray amax(Values(1, 0.5), Element::kF32);
  a.amax = amax.fp32();
  CUDA_OK(adamw(a, nullptr));
  EXPECT_EQ(p.values(), before);
  double top = 0.5;
  for (const double value : before) top = std::max(top, std::abs(value));
  EXPECT_EQ(amax.values(), Values(1, top));
}

TEST_F(AdamWTest, AmaxOfNaNIsNaN) {
  DeviceArray p(Values{1, std::nan(""), -3, 2}, Element::kF32), m(Values(4, 0.0), Element::kF32),
      v(Values(4, 0.0), Element::kF32), g(Values(4, 0.0), Element::kF32), step(Values{1.0}, Element::kF32),
      amax(Values(2, 0.0), Element::kF32);
  const ShardTable table = make_shard_table({{0, 2, 0, false}, {2, 4, 1, false}}, 2);
  DeviceBytes chunks(static_cast<int64_t>(table.chunks.size() * sizeof(ShardChunk)));
  chunks.write(table.chunks.data());
  AdamW a;
  a.master = p.fp32(), a.exp_avg = m.fp32(), a.exp_avg_sq = v.fp32(), a.gradient = g.data(), a.step = step.fp32();
  a.amax = amax.fp32(), a.chunks = chunks.as<ShardChunk>(), a.num_chunks = static_cast<int64_t>(table.chunks.size());
  CUDA_OK(adamw(a, nullptr));
  EXPECT_TRUE(std::isnan(amax.values()[0]));
  EXPECT_EQ(amax.values()[1], 3);
}

}  // namespace

}  // namespace trireme::kernels::testing::adamw_tests
