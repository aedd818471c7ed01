#include "kernels/optimizer/optimizer.h"

#include "optimizer_oracle.h"
#include "testing.h"

#include <memory>

namespace trireme::kernels::testing::lamb_tests {

namespace {

class LambTest : public KernelTest {
 protected:
  struct Case {
    int64_t count, shift;
    std::vector<ShardPiece> pieces;
    int tensors;
    Element gradient, compute;
  };

  static void check(const Case& c) {
    SCOPED_TRACE(std::to_string(c.count) + " elements, shift " + std::to_string(c.shift) + ", " +
                 std::to_string(c.pieces.size()) + " pieces");
    // The weights of tensor 0 are zero, so its trust ratio is 1.
    Values master = normal_values(c.count, Element::kF32, 1);
    for (const ShardPiece& piece : c.pieces)
      if (piece.tensor == 0)
        for (int64_t i = piece.begin; i < piece.end; ++i) master[i] = 0;
    oracle::LambState state{master, Values(c.count, 0.0), Values(c.count, 0.0)};
    const ShardTable table = make_shard_table(c.pieces, c.tensors);
    DeviceBytes chunks(static_cast<int64_t>(table.chunks.size() * sizeof(ShardChunk)));
    chunks.write(table.chunks.data());
    DeviceIntegers<int32_t> tensor_chunks(table.tensor_chunks);
    const int64_t row = c.tensors + 3;
    DeviceArray p(master, Element::kF32, c.shift), m(state.exp_avg, Element::kF32, c.shift),
        v(state.exp_avg_sq, Element::kF32, c.shift), compute(c.count, c.compute, c.shift);
    for (int step = 1; step <= 10; ++step) {
      const Values g = normal_values(c.count, c.gradient, 10 + step, 0.1);
      DeviceArray gradient(g, c.gradient, c.shift), multiplier(Values{0.25}, Element::kF32),
          steps(Values{static_cast<double>(step)}, Element::kF32), skip(Values{0.0}, Element::kF32);
      DeviceBytes partial(static_cast<int64_t>(table.chunks.size() * 16)), squares(2 * row * 8);
      Lamb a;
      a.master = p.fp32(), a.exp_avg = m.fp32(), a.exp_avg_sq = v.fp32(), a.gradient = gradient.data(),
      a.compute = compute.data();
      a.multiplier = multiplier.fp32(), a.skip = skip.fp32(), a.step = steps.fp32();
      a.chunks = chunks.as<ShardChunk>(), a.num_chunks = static_cast<int64_t>(table.chunks.size());
      a.tensor_chunks = tensor_chunks.as<int32_t>(), a.num_tensors = c.tensors;
      a.lr = 1e-2, a.beta1 = 0.6, a.beta2 = 0.85, a.weight_decay = 0.5, a.gradient_element = c.gradient,
      a.compute_element = c.compute;
      CUDA_OK(lamb_moments(&a, 1, partial.as<double>(), squares.as<double>(), row, nullptr));
      CUDA_OK(lamb_apply(&a, 1, squares.as<double>(), row, nullptr));
      Values expected;
      oracle::lamb(state, g, c.pieces, c.tensors,
                   {0.25, static_cast<double>(step), a.lr, a.beta1, a.beta2, a.eps, a.weight_decay}, expected);
      std::vector<double> sums(static_cast<size_t>(2 * row));
      std::memcpy(sums.data(), squares.read().data(), sums.size() * 8);
      for (int t = 0; t < c.tensors; ++t) {
        EXPECT_NEAR(sums[t], expected[t], expected[t] * 1e-5) << "weights of tensor " << t;
        EXPECT_NEAR(sums[row + t], expected[c.tensors + t], expected[c.tensors + t] * 1e-5 + 1e-12)
            << "update of tensor " << t;
      }
      EXPECT_TRUE(std::isnan(sums[c.tensors])) << "squares beyond the tensors of this shard were written";
    }
    expect_close(p.values(), state.master, Element::kF32, 0, 3e-6, "master");
    expect_close(m.values(), state.exp_avg, Element::kF32, 0, 1e-8, "exp_avg");
    expect_close(v.values(), state.exp_avg_sq, Element::kF32, 0, 1e-9, "exp_avg_sq");
    const Values now = p.values(), copy = compute.values();
    for (const ShardPiece& piece : c.pieces)
      for (int64_t i = piece.begin; i < piece.end; ++i) ASSERT_EQ(copy[i], round_to(now[i], c.compute)) << i;
  }
};

TEST_F(LambTest, MatchesTheOracleOverTenSteps) {
  check({1, 0, {{0, 1, 1, true}}, 2, Element::kF32, Element::kBF16});
  check({20000,
         0,
         {{0, 17, 0, false}, {17, 1023, 1, true}, {1023, 4000, 2, false}, {4000, 20000, 3, true}},
         4,
         Element::kF32,
         Element::kF16});
  check({4099, 0, {{0, 4, 2, true}, {4, 8, 1, false}, {8, 4099, 0, true}}, 3, Element::kBF16, Element::kBF16});
  check({9000, 1, {{0, 100, 1, true}, {100, 9000, 2, false}}, 5, Element::kF16, Element::kF32});
  check({12000, 0, {{3, 11, 1, true}, {16, 18, 0, false}, {5000, 12000, 1, true}}, 2, Element::kF32, Element::kBF16});
}

TEST_F(LambTest, HalvesOfATensorOnTwoRanksGiveTheWholeUpdate) {
  const int64_t n = 10000, half = 4321;
  const Values master = normal_values(n, Element::kF32, 1), g = normal_values(n, Element::kF32, 2, 0.1);
  oracle::LambState state{master, Values(n, 0.0), Values(n, 0.0)};
  Values expected;
  oracle::lamb(state, g, {{0, n, 0, true}}, 1, {1.0, 1.0, 1e-2, 0.9, 0.999, 1e-6, 0.1}, expected);
  double sums[2] = {0, 0};
  std::vector<std::unique_ptr<DeviceArray>> weights, firsts, seconds, gradients, copies;
  DeviceArray step(Values{1.0}, Element::kF32);
  std::vector<Lamb> parts;
  std::vector<std::unique_ptr<DeviceBytes>> tables;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, half}, {half, n}}) {
    const auto slice = [&](const Values& x) { return Values(x.begin() + begin, x.begin() + end); };
    const ShardTable table = make_shard_table({{0, end - begin, 0, true}}, 1);
    tables.push_back(std::make_unique<DeviceBytes>(static_cast<int64_t>(table.chunks.size() * sizeof(ShardChunk))));
    tables.back()->write(table.chunks.data());
    DeviceIntegers<int32_t> tensor_chunks(table.tensor_chunks);
    weights.push_back(std::make_unique<DeviceArray>(slice(master), Element::kF32));
    firsts.push_back(std::make_unique<DeviceArray>(Values(end - begin, 0.0), Element::kF32));
    seconds.push_back(std::make_unique<DeviceArray>(Values(end - begin, 0.0), Element::kF32));
    gradients.push_back(std::make_unique<DeviceArray>(slice(g), Element::kF32));
    Lamb a;
    a.master = weights.back()->fp32(), a.exp_avg = firsts.back()->fp32(), a.exp_avg_sq = seconds.back()->fp32(),
    a.gradient = gradients.back()->data();
    a.step = step.fp32(), a.chunks = tables.back()->as<ShardChunk>(),
    a.num_chunks = static_cast<int64_t>(table.chunks.size());
    // Two ranks hold the same copy, so each counts half.
    a.tensor_chunks = tensor_chunks.as<int32_t>(), a.num_tensors = 1, a.share = 0.5;
    a.lr = 1e-2, a.weight_decay = 0.1;
    DeviceBytes partial(static_cast<int64_t>(table.chunks.size() * 16)), squares(16);
    CUDA_OK(lamb_moments(&a, 1, partial.as<double>(), squares.as<double>(), 1, nullptr));
    double own[2];
    std::memcpy(own, squares.read().data(), 16);
    sums[0] += 2 * own[0], sums[1] += 2 * own[1];
    parts.push_back(a);
  }
  DeviceBytes squares(16);
  squares.write(sums);
  for (const Lamb& a : parts) CUDA_OK(lamb_apply(&a, 1, squares.as<double>(), 1, nullptr));
  Values result = weights[0]->values();
  for (const double w : weights[1]->values()) result.push_back(w);
  expect_close(result, state.master, Element::kF32, 0, 1e-6, "master");
}

TEST_F(LambTest, ManyShardsTogetherAreUpdatedAsEachAlone) {
  // More than a launch takes, of several sizes, gradient types and alignments, some without elements and arrays, and
  // one without a copy.
  constexpr int kShards = 70;
  std::vector<std::unique_ptr<DeviceArray>> arrays;
  std::vector<std::unique_ptr<DeviceBytes>> tables;
  std::vector<std::unique_ptr<DeviceIntegers<int32_t>>> chunks_of;
  const auto array = [&](const Values& values, Element element) {
    return arrays.emplace_back(std::make_unique<DeviceArray>(values, element)).get();
  };
  const DeviceArray* step = array({3.0}, Element::kF32);
  std::vector<Lamb> shards[2];
  std::vector<DeviceArray*> masters[2], copies[2];
  int64_t chunks = 0;
  int tensors = 0;
  for (int s = 0; s < kShards; ++s) {
    const bool empty = s == 0 || s == 7 || s == 8 || s == kShards - 1;
    const int64_t n = empty ? 0 : 1 + s * 977 % 9001, shift = s % 5 == 1 ? 1 : 0;
    const ShardTable table = make_shard_table({{0, n / 2, 1, true}, {n / 2, n, 0, false}}, 2);
    tables.push_back(std::make_unique<DeviceBytes>(std::max<int64_t>(1, table.chunks.size() * sizeof(ShardChunk))));
    if (!table.chunks.empty()) tables.back()->write(table.chunks.data());
    chunks_of.push_back(std::make_unique<DeviceIntegers<int32_t>>(table.tensor_chunks));
    const Element type = s < 40 ? Element::kF32 : Element::kBF16;
    const DeviceArray* gradient = array(normal_values(n + 1, type, 100 + s), type);
    for (int way : {0, 1}) {
      Lamb a;
      masters[way].push_back(array(normal_values(n + 1, Element::kF32, s), Element::kF32));
      copies[way].push_back(array(Values(n + 1, 0.0), Element::kF16));
      a.master = masters[way].back()->data(), a.exp_avg = array(Values(n + 1, 0.1), Element::kF32)->data();
      a.exp_avg_sq = array(Values(n + 1, 0.2), Element::kF32)->data(), a.gradient = gradient->data();
      a.compute = s == 11 ? nullptr : copies[way].back()->data(), a.compute_element = Element::kF16;
      if (shift == 1) a.master = masters[way].back()->fp32() + shift;
      a.gradient_element = type, a.step = step->fp32(), a.chunks = tables.back()->as<ShardChunk>();
      a.num_chunks = static_cast<int64_t>(table.chunks.size());
      if (empty) a.master = a.exp_avg = a.exp_avg_sq = a.compute = nullptr, a.gradient = nullptr, a.chunks = nullptr;
      a.tensor_chunks = chunks_of.back()->as<int32_t>(), a.num_tensors = 2, a.first_tensor = tensors;
      a.share = 1.0 / (1 + s % 3), a.lr = 1e-2, a.weight_decay = 0.1;
      shards[way].push_back(a);
    }
    chunks += static_cast<int64_t>(table.chunks.size());
    tensors += 2;
  }
  DeviceBytes partial(chunks * 16), together(2 * tensors * 8), alone(2 * tensors * 8);
  CUDA_OK(lamb_moments(shards[0].data(), kShards, partial.as<double>(), together.as<double>(), tensors, nullptr));
  CUDA_OK(lamb_apply(shards[0].data(), kShards, together.as<double>(), tensors, nullptr));
  for (const Lamb& a : shards[1])
    CUDA_OK(
        lamb_moments(&a, 1, a.num_chunks > 0 ? partial.as<double>() : nullptr, alone.as<double>(), tensors, nullptr));
  for (const Lamb& a : shards[1]) CUDA_OK(lamb_apply(&a, 1, alone.as<double>(), tensors, nullptr));
  EXPECT_TRUE(together.read() == alone.read());
  for (int s = 0; s < kShards; ++s) {
    EXPECT_TRUE(masters[0][s]->read() == masters[1][s]->read()) << "shard " << s;
    EXPECT_TRUE(copies[0][s]->read() == copies[1][s]->read()) << "shard " << s;
  }
}

TEST_F(LambTest, SkipLeavesEverythingAlone) {
  const int64_t n = 5000;
  const Values before = normal_values(n, Element::kF32, 1);
  DeviceArray p(before, Element::kF32), m(before, Element::kF32), v(before, Element::kF32),
      g(Values(n, std::nan("")), Element::kF32), skip(Values{1.0}, Element::kF32), step(Values{1.0}, Element::kF32);
  const ShardTable table = make_shard_table({{0, n, 0, true}}, 1);
  DeviceBytes chunks(static_cast<int64_t>(table.chunks.size() * sizeof(ShardChunk))),
      partial(static_cast<int64_t>(table.chunks.size() * 16)), squares(16);
  chunks.write(table.chunks.data());
  DeviceIntegers<int32_t> tensor_chunks(table.tensor_chunks);
  Lamb a;
  a.master = p.fp32(), a.exp_avg = m.fp32(), a.exp_avg_sq = v.fp32(), a.gradient = g.data(), a.skip = skip.fp32(),
  a.step = step.fp32();
  a.chunks = chunks.as<ShardChunk>(), a.num_chunks = static_cast<int64_t>(table.chunks.size()), a.lr = 1;
  a.tensor_chunks = tensor_chunks.as<int32_t>(), a.num_tensors = 1;
  CUDA_OK(lamb_moments(&a, 1, partial.as<double>(), squares.as<double>(), 1, nullptr));
  CUDA_OK(lamb_apply(&a, 1, squares.as<double>(), 1, nullptr));
  EXPECT_EQ(p.values(), before);
  EXPECT_EQ(m.values(), before);
  EXPECT_EQ(v.values(), before);
  double sums[2];
  std::memcpy(sums, squares.read().data(), 16);
  EXPECT_EQ(sums[0], 0.0);
  EXPECT_EQ(sums[1], 0.0);
}

TEST_F(LambTest, SameBitsEveryTime) {
  const int64_t n = 300000;
  const Values master = normal_values(n, Element::kF32, 1), g = normal_values(n, Element::kF32, 2);
  const ShardTable table = make_shard_table({{0, 100001, 0, true}, {100001, n, 1, false}}, 2);
  DeviceBytes chunks(static_cast<int64_t>(table.chunks.size() * sizeof(ShardChunk))),
      partial(static_cast<int64_t>(table.chunks.size() * 16)), squares(32);
  chunks.write(table.chunks.data());
  DeviceIntegers<int32_t> tensor_chunks(table.tensor_chunks);
  DeviceArray gradient(g, Element::kF32), step(Values{1.0}, Element::kF32), compute(n, Element::kBF16),
      start(master, Element::kF32), p(n, Element::kF32), m(n, Element::kF32), v(n, Element::kF32);
  std::vector<unsigned char> first;
  for (int run = 0; run < 100; ++run) {
    cudaMemcpy(p.data(), start.data(), static_cast<size_t>(n) * 4, cudaMemcpyDeviceToDevice);
    cudaMemset(m.data(), 0, static_cast<size_t>(n) * 4), cudaMemset(v.data(), 0, static_cast<size_t>(n) * 4);
    compute.poison(), partial.poison(), squares.poison();
    Lamb a;
    a.master = p.fp32(), a.exp_avg = m.fp32(), a.exp_avg_sq = v.fp32(), a.gradient = gradient.data(),
    a.compute = compute.data(), a.step = step.fp32();
    a.chunks = chunks.as<ShardChunk>(), a.num_chunks = static_cast<int64_t>(table.chunks.size()), a.lr = 1e-2;
    a.tensor_chunks = tensor_chunks.as<int32_t>(), a.num_tensors = 2;
    CUDA_OK(lamb_moments(&a, 1, partial.as<double>(), squares.as<double>(), 2, nullptr));
    CUDA_OK(lamb_apply(&a, 1, squares.as<double>(), 2, nullptr));
    std::vector<unsigned char> now = p.read();
    if (run == 0)
      first = std::move(now);
    else
      ASSERT_TRUE(now == first) << "run " << run;
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::lamb_tests
