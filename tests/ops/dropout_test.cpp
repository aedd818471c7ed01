#include "trireme/ops/dropout.h"

#include "gradient_check.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trireme {
namespace {

using namespace testing;

Dropout rows(double p, std::vector<int64_t> ids, uint64_t seed = 3) { return {p, seed, at::tensor(ids, at::kLong)}; }

at::Tensor mask(int64_t b, int64_t s, int64_t d, const Dropout& dropout, uint64_t stream) {
  return apply_dropout(at::ones({b, s, d}, at::kDouble), dropout.at(stream)).ne(0).to(at::kDouble);
}

double correlation(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.reshape({-1}) - a.mean(), y = b.reshape({-1}) - b.mean();
  return ((x * y).mean() / (x.square().mean() * y.square().mean()).sqrt()).item<double>();
}

TEST(Dropout, TensorOperationsDecideAsTheLoop) {
  // Odd row size, ids beyond 32 bits, all floating types.
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const Dropout dropout = rows(0.37, {0, 5, (int64_t{1} << 40) + 7});
    const at::Tensor x = random({3, 7, 13}, 1, dtype);
    const at::Tensor loop = apply_dropout(x, dropout.at(11)), ops = apply_dropout_tensor_ops(x, dropout.at(11));
    EXPECT_TRUE(at::equal(loop.ne(0), ops.ne(0)));
    EXPECT_LT(relative_difference(loop, ops), dtype == at::kBFloat16 ? 1e-2 : dtype == at::kHalf ? 2e-3 : 1e-6);
  }
}

TEST(Dropout, KeepsTheAskedShareAndScalesToTheMean) {
  for (const double p : {0.05, 0.1, 0.5}) {
    const int64_t n = 4 * 256 * 512;
    const at::Tensor y = apply_dropout(at::ones({4, 256, 512}, at::kDouble), rows(p, {1, 2, 3, 4}));
    const double kept = y.ne(0).to(at::kDouble).mean().item<double>(), sigma = std::sqrt(p * (1 - p) / n);
    EXPECT_NEAR(kept, 1 - p, 5 * sigma + 1.0 / 65536) << p;
    EXPECT_NEAR(y.mean().item<double>(), 1, 6 * sigma / (1 - p)) << p;
  }
}

TEST(Dropout, SharesOfRowsAndColumnsScatterAsBinomials) {
  const double p = 0.1;
  const at::Tensor m = mask(1, 1024, 1024, rows(p, {77}), 5)[0];
  for (const int dimension : {0, 1}) {
    const at::Tensor shares = m.mean(dimension);
    const double sigma = std::sqrt(p * (1 - p) / 1024);
    EXPECT_NEAR(shares.std().item<double>(), sigma, 0.15 * sigma) << dimension;
    EXPECT_LT((shares - (1 - p)).abs().max().item<double>(), 6 * sigma) << dimension;
  }
}

TEST(Dropout, NeighboursSamplesStreamsAndSeedsAreUncorrelated) {
  const double p = 0.3, bound = 5 / std::sqrt(512.0 * 512);
  const at::Tensor base = mask(1, 512, 512, rows(p, {10}), 1);
  EXPECT_LT(std::abs(correlation(base.narrow(2, 0, 511), base.narrow(2, 1, 511))), bound);
  EXPECT_LT(std::abs(correlation(base.narrow(1, 0, 511), base.narrow(1, 1, 511))), bound);
  for (const int64_t id : {11, 12, 14, 26, 10 + 65536})
    EXPECT_LT(std::abs(correlation(base, mask(1, 512, 512, rows(p, {id}), 1))), bound) << id;
  for (const uint64_t stream : {0, 2, 17})
    EXPECT_LT(std::abs(correlation(base, mask(1, 512, 512, rows(p, {10}), stream))), bound) << stream;
  EXPECT_LT(std::abs(correlation(base, mask(1, 512, 512, rows(p, {10}, 4), 1))), bound);
}

TEST(Dropout, DoesNotDependOnTheMicroBatchSplit) {
  const at::Tensor x = random({4, 6, 10}, 1);
  const std::vector<int64_t> ids = {40, 8, 15, 16};
  const at::Tensor together = apply_dropout(x, rows(0.5, ids).at(2));
  for (int64_t b = 0; b < 4; ++b)
    EXPECT_EQ(max_difference(apply_dropout(x.narrow(0, b, 1), rows(0.5, {ids[b]}).at(2)), together.narrow(0, b, 1)), 0);
}

TEST(Dropout, TokensAreTheRowsOfTheirSample) {
  const at::Tensor x = random({4, 6, 10}, 1);
  const Dropout dropout = rows(0.5, {40, 8, 15, 16}).at(2);
  EXPECT_EQ(max_difference(apply_dropout(x.flatten(0, 1), dropout), apply_dropout(x, dropout).flatten(0, 1)), 0);
}

TEST(Dropout, RegeneratesExactlyAndReadsStridedInput) {
  const at::Tensor wide = random({2, 6, 20}, 1);
  const at::Tensor x = wide.narrow(2, 3, 9);
  const Dropout dropout = rows(0.4, {1, 2});
  EXPECT_EQ(max_difference(apply_dropout(x, dropout.at(2)), apply_dropout(x.contiguous(), dropout.at(2))), 0);
}

TEST(Dropout, TheHashIsTheDocumentedOne) {
  // Written from the header, not shared with the implementation.
  const auto mix = [](uint32_t x) {
    x ^= x >> 16;
    x *= 0x21f0aaadu;
    x ^= x >> 15;
    x *= 0x735a2d97u;
    return x ^ (x >> 15);
  };
  const Dropout dropout = rows(0.25, {123456789});
  const DropoutKey key = dropout_key(dropout.at(9));
  EXPECT_EQ(key.threshold, 16384u);
  const uint32_t k0 = mix(mix(123456789u ^ key.t0) ^ 0u ^ key.t1), k1 = mix(k0 + 0x9e3779b9u);
  const at::Tensor kept = mask(1, 3, 5, dropout, 9).view({-1});
  for (uint32_t e = 0; e < 15; ++e) {
    const uint32_t h = mix(mix((e >> 1) ^ k0) ^ k1), u = e % 2 == 0 ? h & 0xffff : h >> 16;
    EXPECT_EQ(kept[e].item<double>() != 0, u >= 16384u) << e;
  }
}

TEST(Dropout, RefusesWrongArguments) {
  const at::Tensor x = random({2, 3, 4}, 1);
  EXPECT_ANY_THROW(apply_dropout(x, rows(0.5, {1, 2, 3, 4})));  // 6 rows are not 4 samples
  EXPECT_ANY_THROW(apply_dropout(x, rows(1.0, {1, 2})));
  EXPECT_ANY_THROW(apply_dropout(x[0][0], rows(0.5, {1, 2})));
  EXPECT_ANY_THROW(apply_dropout(x, {0.5, 3, {}}));
}

}  // namespace
}  // namespace trireme
