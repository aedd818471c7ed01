#include "trireme/ops/dropout.h"

#include "dropout_parts.h"
#include "gradient_check.h"
#include "trireme/base/error.h"

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

TEST(Dropout, ASliceOfTheRowsDecidesAsTheWhole) {
  constexpr int64_t kRows = 7, kWidth = 10;
  const std::vector<int64_t> ids = {40, 8, 15, 16};
  const at::Tensor x = random({4 * kRows, kWidth}, 1, at::kFloat);
  Dropout dropout = rows(0.5, ids).at(2);
  const at::Tensor whole = apply_dropout(x, dropout);
  dropout.sample_rows = kRows;
  for (int64_t first = 0; first < x.size(0); ++first) {
    for (int64_t count = 1; first + count <= x.size(0); ++count) {
      dropout.first_row = first;
      const at::Tensor slice = x.narrow(0, first, count), expected = whole.narrow(0, first, count);
      EXPECT_TRUE(at::equal(apply_dropout(slice, dropout), expected)) << first << " + " << count;
      EXPECT_TRUE(at::equal(apply_dropout_tensor_ops(slice, dropout).ne(0), expected.ne(0))) << first << " + " << count;
      EXPECT_TRUE(at::equal(add_dropout(slice, slice, dropout), slice + expected));
    }
  }
  dropout.first_row = 20;
  EXPECT_THROW(apply_dropout(x.narrow(0, 0, 9), dropout), InternalError);
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

/// Whether element e of a sample is kept: an independent implementation of the header's specification.
bool documented(const DropoutKey& key, int64_t sample, uint64_t e) {
  const auto mix = [](uint32_t x) {
    x ^= x >> 16;
    x *= 0x21f0aaadu;
    x ^= x >> 15;
    x *= 0x735a2d97u;
    return x ^ (x >> 15);
  };
  const auto id = static_cast<uint64_t>(sample), w = e >> 1;
  const uint32_t k0 = mix(mix(static_cast<uint32_t>(id) ^ key.t0) ^ static_cast<uint32_t>(id >> 32) ^ key.t1),
                 k1 = mix(k0 + 0x9e3779b9u);
  const uint32_t h = mix(mix(static_cast<uint32_t>(w) ^ k0) ^ k1 ^ static_cast<uint32_t>(w >> 32) * 0x9e3779b9u);
  return (e % 2 == 0 ? h & 0xffff : h >> 16) >= key.threshold;
}

TEST(Dropout, TheHashIsTheDocumentedOne) {
  const Dropout dropout = rows(0.25, {123456789});
  const DropoutKey key = dropout_key(dropout.at(9));
  EXPECT_EQ(key.threshold, 16384u);
  const at::Tensor kept = mask(1, 3, 5, dropout, 9).view({-1});
  for (uint32_t e = 0; e < 15; ++e) EXPECT_EQ(kept[e].item<double>() != 0, documented(key, 123456789, e)) << e;
}

TEST(Dropout, ElementsBeyond32BitsOfWordsHaveDecisionsOfTheirOwn) {
  const std::vector<int64_t> ids = {5, (int64_t{1} << 40) + 7};
  const at::Tensor id_tensor = at::tensor(ids, at::kLong);
  const DropoutKey key = dropout_key(rows(0.5, ids).at(3));
  constexpr int64_t kCount = 4099, kWrap = int64_t{1} << 33;
  const at::Tensor ones = at::ones({2, kCount}, at::kFloat);
  // Around the first and the second multiple of 2^33 elements, where 32-bit word indices start again, and far beyond.
  const at::Tensor start = dropout_elements::by_loop(ones, id_tensor, key, 0).ne(0);
  for (const int64_t first :
       {int64_t{0}, kWrap / 2 - 2048, kWrap - 2048, kWrap, 2 * kWrap - 2048, 2 * kWrap, int64_t{1000} * kWrap + 6}) {
    const at::Tensor loop = dropout_elements::by_loop(ones, id_tensor, key, first).ne(0),
                     ops = dropout_elements::by_tensor_ops(ones, id_tensor, key, first).ne(0);
    EXPECT_TRUE(at::equal(loop, ops)) << first;
    for (size_t b = 0; b < ids.size(); ++b)
      for (int64_t e = 0; e < kCount; ++e)
        ASSERT_EQ(loop[static_cast<int64_t>(b)][e].item<bool>(),
                  documented(key, ids[b], static_cast<uint64_t>(first + e)))
            << "sample " << ids[b] << ", element " << first + e;
    EXPECT_NEAR(loop.to(at::kDouble).mean().item<double>(), 0.5, 0.03) << first;
    if (first != 0) {
      EXPECT_LT(std::abs(correlation(loop.to(at::kDouble), start.to(at::kDouble))), 5 / std::sqrt(2.0 * kCount))
          << "the decisions of element 0 repeat at element " << first;
    }
  }
}

TEST(Dropout, ManyShortSamplesAreOneSampleEach) {
  // One token per sample, as in a BERT batch: more rows than one launch supports, and more than the tensor operations
  // process at once.
  constexpr int64_t kTokens = 66000, kWidth = 130;
  const at::Tensor x = random({kTokens, 1, kWidth}, 1, at::kFloat);
  const Dropout dropout{0.1, 3, at::arange(kTokens, at::TensorOptions(at::kLong)) * 7};
  const at::Tensor loop = apply_dropout(x, dropout.at(2)), ops = apply_dropout_tensor_ops(x, dropout.at(2));
  EXPECT_TRUE(at::equal(loop, ops));
  EXPECT_TRUE(at::equal(loop[65999], apply_dropout(x.narrow(0, 65999, 1), rows(0.1, {65999 * 7}).at(2))[0]));
}

TEST(Dropout, RefusesWhatWouldDropNothing) {
  EXPECT_EQ(dropout_key(rows(8e-6, {1})).threshold, 1u);
  EXPECT_ANY_THROW(dropout_key(rows(7e-6, {1})));
  EXPECT_ANY_THROW(dropout_key(rows(1 - 1e-6, {1})));
}

TEST(Dropout, RefusesWrongArguments) {
  const at::Tensor x = random({2, 3, 4}, 1);
  EXPECT_ANY_THROW(apply_dropout(x, rows(0.5, {1, 2, 3, 4})));  // 6 rows do not divide into 4 samples
  EXPECT_ANY_THROW(apply_dropout(x, rows(1.0, {1, 2})));
  EXPECT_ANY_THROW(apply_dropout(x[0][0], rows(0.5, {1, 2})));
  EXPECT_ANY_THROW(apply_dropout(x, {0.5, 3, {}}));
}

}  // namespace
}  // namespace trireme
