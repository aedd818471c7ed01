#include "trireme/ops/rope.h"

#include "gradient_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace trireme {
namespace {

using namespace testing;

/// x cos + rotate_half(x) sin, as in Hugging Face's implementation.
at::Tensor rotate_plain(const at::Tensor& x_TNH, const RopeTable& table) {
  const int64_t half = x_TNH.size(-1) / 2;
  const at::Tensor cos = at::cat({table.cos, table.cos}, -1).unsqueeze(1),
                   sin = at::cat({table.sin, table.sin}, -1).unsqueeze(1);
  const at::Tensor rotated = at::cat({-x_TNH.narrow(-1, half, half), x_TNH.narrow(-1, 0, half)}, -1);
  return x_TNH * cos + rotated * sin;
}

RopeTable table_for(int64_t rows, int64_t length, int64_t head_dim, at::ScalarType dtype = at::kDouble) {
  const at::Tensor positions = at::arange(length, at::TensorOptions(at::kLong)).repeat({rows});
  return rope_table({}, head_dim, positions, {}, dtype);
}

TEST(Rope, RotatesQAndKAndLeavesV) {
  const int64_t b = 2, s = 5, n = 3, k = 1, h = 6;
  const at::Tensor qkv = random({b * s, (n + 2 * k) * h}, 1);
  const RopeTable table = table_for(b, s, h);
  const at::Tensor heads = qkv.view({b * s, n + 2 * k, h});
  const at::Tensor want_q = rotate_plain(heads.narrow(1, 0, n), table),
                   want_k = rotate_plain(heads.narrow(1, n, k), table);
  const auto [q, key, v] = rope_split_qkv_(qkv.clone(), table, n, k, h);
  EXPECT_LT(max_difference(q, want_q), 1e-14);
  EXPECT_LT(max_difference(key, want_k), 1e-14);
  EXPECT_EQ(max_difference(v, heads.narrow(1, n + k, k)), 0);
}

TEST(Rope, GradientEqualsDifferences) {
  const RopeTable table = table_for(2, 3, 4);
  const auto f = [&](const std::vector<at::Tensor>& t) {
    const auto [q, k, v] = rope_split_qkv_(t[0] * 1.0, table, 2, 1, 4);
    return project(q, 5) + project(k, 6) + project(v, 7);
  };
  EXPECT_LT(gradient_error(f, {random({6, 16}, 1)}), 1e-8);
}

TEST(Rope, RotationDependsOnDistanceOnly) {
  const at::Tensor q = random({1, 1, 8}, 1, at::kFloat), k = random({1, 1, 8}, 2, at::kFloat);
  const auto score = [&](int64_t at_q, int64_t at_k) {
    const auto rotate = [&](const at::Tensor& x, int64_t position) {
      return rotate_plain(x, rope_table({}, 8, at::full({1}, position, at::TensorOptions(at::kLong)), {}, at::kFloat));
    };
    return (rotate(q, at_q) * rotate(k, at_k)).sum().item<double>();
  };
  EXPECT_NEAR(score(7, 3), score(104, 100), 1e-4);
  EXPECT_GT(std::abs(score(7, 3) - score(7, 4)), 1e-3);
}

TEST(Rope, InverseFrequencies) {
  RopeFrequencies rope;
  rope.theta = 500000;
  const at::Tensor plain = rope_inverse_frequencies(rope, 64).to(at::kDouble);
  for (const int i : {0, 7, 31}) EXPECT_NEAR(plain[i].item<double>() * std::pow(500000.0, 2.0 * i / 64), 1.0, 1e-6);
  rope.scaling = RopeFrequencies::Scaling::kLinear;
  rope.factor = 4;
  EXPECT_LT(relative_difference(rope_inverse_frequencies(rope, 64) * 4, plain), 1e-7);
}

TEST(Rope, APartOfEachHeadRotates) {
  RopeFrequencies rope;
  rope.part = 0.75;
  const int64_t n = 2, k = 1, h = 8, rotated = 6;
  const at::Tensor positions = at::arange(5, at::TensorOptions(at::kLong));
  const RopeTable table = rope_table(rope, h, positions, {}, at::kDouble);
  EXPECT_EQ(table.cos.sizes(), at::IntArrayRef({5, rotated / 2}));
  const at::Tensor qkv = random({5, (n + 2 * k) * h}, 1), heads = qkv.view({5, n + 2 * k, h});
  const auto [q, key, v] = rope_split_qkv_(qkv.clone(), table, n, k, h);
  EXPECT_LT(max_difference(q.narrow(-1, 0, rotated), rotate_plain(heads.narrow(1, 0, n).narrow(-1, 0, rotated), table)),
            1e-14);
  EXPECT_EQ(max_difference(q.narrow(-1, rotated, 2), heads.narrow(1, 0, n).narrow(-1, rotated, 2)), 0);
  const auto f = [&](const std::vector<at::Tensor>& t) {
    const auto [a, b, c] = rope_split_qkv_(t[0] * 1.0, table, n, k, h);
    return project(a, 5) + project(b, 6) + project(c, 7);
  };
  EXPECT_LT(gradient_error(f, {qkv}), 1e-8);
}

TEST(Rope, FrequenciesByLengthAreThoseOfEachSequence) {
  RopeFrequencies dynamic, longrope;
  dynamic.scaling = RopeFrequencies::Scaling::kDynamic;
  dynamic.factor = 2;
  dynamic.original_max_position = 4;
  longrope.scaling = RopeFrequencies::Scaling::kLongrope;
  longrope.original_max_position = 4;
  longrope.factor = 8;
  longrope.short_factor = {1, 1.5};
  longrope.long_factor = {2, 5};
  const std::vector<int32_t> boundaries = {0, 3, 12, 16, 22};
  const at::Tensor positions = at::cat({at::arange(3), at::arange(9), at::arange(4), at::arange(6)}).to(at::kLong);
  for (const RopeFrequencies& rope : {dynamic, longrope}) {
    const RopeTable all = rope_table(rope, 4, positions, boundaries, at::kFloat);
    for (size_t i = 0; i + 1 < boundaries.size(); ++i) {
      const int32_t begin = boundaries[i], length = boundaries[i + 1] - begin;
      const RopeTable own = rope_table(rope, 4, positions.narrow(0, begin, length), {0, length}, at::kFloat);
      EXPECT_TRUE(at::equal(all.cos.narrow(0, begin, length), own.cos)) << i;
      EXPECT_TRUE(at::equal(all.sin.narrow(0, begin, length), own.sin)) << i;
    }
  }
  EXPECT_NEAR(rope_attention_factor(longrope), std::sqrt(1 + std::log(8.0) / std::log(4.0)), 1e-15);
  EXPECT_TRUE(at::equal(rope_inverse_frequencies(dynamic, 4, 4), rope_inverse_frequencies({}, 4)));
  // NTK: base 10000 (2 * 9 / 4 - 1) ^ (4 / 2).
  EXPECT_NEAR(rope_inverse_frequencies(dynamic, 4, 9)[1].item<double>(), 1 / std::sqrt(10000 * 3.5 * 3.5), 1e-8);
}

TEST(Rope, Llama3KeepsFastDividesSlowAndBlendsBetween) {
  RopeFrequencies rope;
  rope.theta = 500000;
  const at::Tensor plain = rope_inverse_frequencies(rope, 128).to(at::kDouble);
  rope.scaling = RopeFrequencies::Scaling::kLlama3;
  rope.factor = 8;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_max_position = 8192;
  const at::Tensor scaled = rope_inverse_frequencies(rope, 128).to(at::kDouble);
  int blended = 0;
  for (int i = 0; i < 64; ++i) {
    const double frequency = plain[i].item<double>(), wavelength = 2 * std::numbers::pi / frequency;
    const double ratio = scaled[i].item<double>() / frequency;
    if (wavelength < 2048) {
      EXPECT_NEAR(ratio, 1, 1e-6) << i;
    } else if (wavelength > 8192) {
      EXPECT_NEAR(ratio, 1.0 / 8, 1e-6) << i;
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(ratio, (1 - smooth) / 8 + smooth, 1e-5) << i;
      ++blended;
    }
  }
  EXPECT_GT(blended, 0);
}

}  // namespace
}  // namespace trireme
