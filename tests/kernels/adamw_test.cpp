#include "kernels/optimizer/optimizer.h"

#include "optimizer_oracle.h"
#include "testing.h"

#include <algorithm>
#include <cmath>
#include <tuple>

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

/// bf16 master weights: each step's result is one of the neighbours of the oracle's, the one that the random bits say,
/// and no direction has an advantage.
TEST_F(AdamWTest, Bf16MastersAreRoundedByTheirBits) {
  constexpr uint64_t kFirst = (uint64_t{1} << 32) - 5000;
  constexpr uint32_t kKey = 0xDEADBEEF;
  for (const auto& [count, shift, gradient, moments] :
       {std::tuple{int64_t{20000}, int64_t{0}, Element::kF32, Element::kF32},
        {20000, 0, Element::kBF16, Element::kBF16},
        {4099, 1, Element::kBF16, Element::kF32},
        {4099, 0, Element::kF32, Element::kBF16},
        {1, 0, Element::kBF16, Element::kBF16}}) {
    SCOPED_TRACE(std::to_string(count) + " elements, shift " + std::to_string(shift) + ", gradients " +
                 name_of(gradient) + ", moments " + name_of(moments));
    const ShardTable table = make_shard_table({{0, count / 3, 0, false}, {count / 3, count, 1, true}}, 2);
    std::vector<bool> decays(count);
    for (int64_t i = count / 3; i < count; ++i) decays[i] = true;
    DeviceBytes chunks(static_cast<int64_t>(table.chunks.size() * sizeof(ShardChunk)));
    chunks.write(table.chunks.data());
    DeviceArray p(normal_values(count, Element::kBF16, 1), Element::kBF16, shift),
        m(Values(count, 0.0), moments, shift), v(Values(count, 0.0), moments, shift);
    double bias = 0;
    int64_t others = 0, moved = 0;
    constexpr int kSteps = 5;
    for (int step = 1; step <= kSteps; ++step) {
      oracle::AdamWState state{p.values(), m.values(), v.values()};
      const Values before = state.master;
      const Values g = normal_values(count, gradient, 10 + step, 0.1);
      DeviceArray dg(g, gradient, shift), multiplier(Values{0.25}, Element::kF32),
          steps(Values{static_cast<double>(step)}, Element::kF32), amax(Values(2, 0.0), Element::kF32);
      AdamW a;
      a.master = p.data(), a.exp_avg = m.data(), a.exp_avg_sq = v.data(), a.gradient = dg.data();
      a.master_element = Element::kBF16, a.moment_element = moments, a.gradient_element = gradient;
      a.multiplier = multiplier.fp32(), a.step = steps.fp32(), a.amax = amax.fp32();
      a.chunks = chunks.as<ShardChunk>(), a.num_chunks = static_cast<int64_t>(table.chunks.size());
      a.lr = 1e-3, a.beta2 = 0.95, a.weight_decay = 0.5, a.first_element = kFirst, a.master_key = kKey;
      CUDA_OK(adamw(a, nullptr));
      oracle::adamw(state, g, decays, 0.25, step, a.lr, a.beta1, a.beta2, a.eps, a.weight_decay);
      const Values now = p.values();
      Values top(2, 0.0);
      for (int64_t i = 0; i < count; ++i) {
        const double want = state.master[i], apart = std::ldexp(1.0, std::max(-126, std::ilogb(want)) - 7);
        ASSERT_LT(std::abs(now[i] - want), apart * (1 + 1e-4)) << i << ", step " << step;
        const uint32_t bits =
            oracle::rounding_bits(kFirst + static_cast<uint64_t>(i), static_cast<uint32_t>(step), kKey);
        others += now[i] != oracle::rounded_to_bf16(want, bits);
        moved += now[i] != before[i];
        bias += (now[i] - want) / apart;
        top[i < count / 3 ? 0 : 1] = std::max(top[i < count / 3 ? 0 : 1], std::abs(now[i]));
      }
      EXPECT_EQ(amax.values(), top) << "of the weights as they are stored, step " << step;
    }
    const double draws = static_cast<double>(kSteps * count);
    // fp32 sums differ from fp64 in the last bits, which decide few draws.
    EXPECT_LT(static_cast<double>(others), 2 + 0.002 * draws);
    EXPECT_LT(std::abs(bias), 5 * 0.5 * std::sqrt(draws) + 1) << "steps between neighbours";
    EXPECT_TRUE(count == 1 || static_cast<double>(moved) > 0.1 * draws) << moved;
  }
}

TEST_F(AdamWTest, Bf16MastersOfOneMoveByUpdatesBelowTheirSpacing) {
  constexpr int64_t kCount = 1 << 16;
  constexpr int kSteps = 100;
  DeviceArray p(Values(kCount, 1.0), Element::kBF16), m(Values(kCount, 0.0), Element::kF32),
      v(Values(kCount, 0.0), Element::kF32), g(Values(kCount, 0.5), Element::kBF16);
  const ShardTable table = make_shard_table({{0, kCount, 0, false}}, 1);
  DeviceBytes chunks(static_cast<int64_t>(table.chunks.size() * sizeof(ShardChunk)));
  chunks.write(table.chunks.data());
  for (int step = 1; step <= kSteps; ++step) {
    DeviceArray steps(Values{static_cast<double>(step)}, Element::kF32);
    AdamW a;
    a.master = p.data(), a.exp_avg = m.data(), a.exp_avg_sq = v.data(), a.gradient = g.data();
    a.master_element = Element::kBF16, a.gradient_element = Element::kBF16, a.step = steps.fp32();
    a.chunks = chunks.as<ShardChunk>(), a.num_chunks = static_cast<int64_t>(table.chunks.size());
    a.lr = 1e-5, a.master_key = 77;
    CUDA_OK(adamw(a, nullptr));
    // The kernel reads *steps.
    CUDA_OK(cudaDeviceSynchronize());
  }
  double sum = 0;
  for (const double value : p.values()) sum += 1 - value;
  // Below 1 neighbours are 2^-8 apart; the number of moves is binomial.
  EXPECT_NEAR(sum / kCount, kSteps * 1e-5, 5 * std::sqrt(kSteps * 1e-5 / 256 / kCount));
}

TEST_F(AdamWTest, RefusesMastersThatItDoesNotRound) {
  DeviceArray values(Values(8, 1.0), Element::kBF16), step(Values{1.0}, Element::kF32);
  AdamW a;
  a.master = values.data(), a.step = step.fp32(), a.chunks = values.as<ShardChunk>(), a.num_chunks = 1;
  a.master_element = Element::kF16;
  EXPECT_EQ(adamw(a, nullptr), cudaErrorInvalidValue);
  a.master_element = Element::kBF16, a.compute = values.data();
  EXPECT_EQ(adamw(a, nullptr), cudaErrorInvalidValue) << "bf16 masters are the compute copy";
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
