#include "trireme/ops/attention.h"

#include "attention_node.h"
#include "gradient_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using namespace testing;

struct Shape {
  std::vector<int32_t> bounds;
  int64_t heads, kv_heads, head_dim;
  int64_t tokens() const { return bounds.back(); }
};

const std::vector<Shape> kShapes = {
    {{0, 7}, 2, 2, 4},         // one sequence
    {{0, 5, 10}, 4, 2, 6},     // equal lengths, grouped queries
    {{0, 3, 4, 11}, 6, 2, 8},  // one of length 1
    {{0, 2, 6, 12}, 3, 1, 4},
};

/// q, k and v packed as [T, N + 2 K, H].
at::Tensor packed_heads(const Shape& s, at::ScalarType dtype = at::kDouble) {
  return random({s.tokens(), s.heads + 2 * s.kv_heads, s.head_dim}, 1, dtype);
}
std::vector<at::Tensor> apart(const Shape& s, const at::Tensor& packed) {
  return {packed.narrow(1, 0, s.heads), packed.narrow(1, s.heads, s.kv_heads),
          packed.narrow(1, s.heads + s.kv_heads, s.kv_heads)};
}
std::vector<int64_t> keys_of(const Shape& s, int64_t first = 70) {
  std::vector<int64_t> keys;
  for (size_t i = 0; i + 1 < s.bounds.size(); ++i) keys.push_back(first + 13 * static_cast<int64_t>(i));
  return keys;
}
Sequences sequences_of(const Shape& s) { return make_sequences(s.bounds, keys_of(s), at::kCPU); }

AttentionOptions options(bool causal, double p = 0, int64_t window = 0) {
  return {.scale = 0.4, .causal = causal, .window = window, .dropout = p > 0 ? Dropout{p, 3, {}, 4} : Dropout{}};
}
/// A causal mask, one with windows shorter and longer than sequences, and no mask.
const std::vector<std::pair<bool, int64_t>> kMasks = {{false, 0}, {true, 0}, {true, 1},
                                                      {true, 3},  {true, 6}, {true, 90}};

at::Tensor hidden_by(const AttentionOptions& options, int64_t length) {
  at::Tensor seen = at::zeros({length, length}, at::kBool);
  for (int64_t row = 0; row < length; ++row)
    for (int64_t column = 0; column < length; ++column)
      seen[row][column] = !options.causal || (column <= row && (options.window == 0 || column > row - options.window));
  return seen.logical_not();
}

/// Products, mask and softmax of each sequence apart, without dropout; recorded by autograd.
at::Tensor attention_reference(const std::vector<at::Tensor>& qkv, const Shape& shape,
                               const AttentionOptions& options) {
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i + 1 < shape.bounds.size(); ++i) {
    const int64_t begin = shape.bounds[i], length = shape.bounds[i + 1] - begin;
    const auto heads = [&](const at::Tensor& x) {
      return x.narrow(0, begin, length).repeat_interleave(shape.heads / x.size(1), 1).transpose(0, 1);
    };
    at::Tensor scores = at::matmul(heads(qkv[0]), heads(qkv[1]).transpose(1, 2)) * options.scale;
    scores = scores.masked_fill(hidden_by(options, length), -std::numeric_limits<double>::infinity());
    outputs.push_back(at::matmul(at::softmax(scores, -1), heads(qkv[2])).transpose(0, 1));
  }
  return at::cat(outputs);
}

TEST(Attention, EqualsScoresWrittenOut) {
  for (const Shape& s : kShapes) {
    for (const auto& [causal, window] : kMasks) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
        const at::Tensor packed = packed_heads(s, dtype);
        const auto t = apart(s, packed);
        const Sequences sequences = sequences_of(s);
        const AttentionOptions o = options(causal, 0, window);
        const at::Tensor expected = attention_reference(t, s, o);
        const double bound = dtype == at::kDouble ? 1e-12 : 1e-5;
        EXPECT_LT(max_difference(attention(t[0], t[1], t[2], sequences, o), expected), bound)
            << s.tokens() << " tokens, causal " << causal << ", window " << window << " " << c10::toString(dtype);
        EXPECT_LT(max_difference(attention_of_packed(packed, s.kv_heads, sequences, o), expected), bound);
      }
    }
  }
}

/// Each number to the nearest of E4M3 times a power of two for all numbers over the dimensions `of`.
at::Tensor e4m3_values(const at::Tensor& x, at::IntArrayRef of) {
  const at::Tensor amax = x.abs().amax(of, /*keepdim=*/true).expand_as(x).contiguous(), values = x.clone();
  for (int64_t i = 0; i < x.numel(); ++i) {
    double& value = values.mutable_data_ptr<double>()[i];
    double scale = std::ldexp(1.0, 126);
    while (amax.const_data_ptr<double>()[i] * scale > 448) scale /= 2;
    if (value == 0) continue;
    const double step = std::ldexp(1.0, std::max(std::ilogb(value * scale), -6) - 3);
    value = std::nearbyint(value * scale / step) * step / scale;
  }
  return values;
}
std::vector<at::Tensor> e4m3_heads(const std::vector<at::Tensor>& t) {
  return {e4m3_values(t[0], {2}), e4m3_values(t[1], {0, 2}), e4m3_values(t[2], {0, 2})};
}

TEST(Attention, Fp8EqualsScoresOfTheRoundedHeads) {
  for (const Shape& s : kShapes) {
    for (const auto& [causal, window] : kMasks) {
      SCOPED_TRACE(std::to_string(s.tokens()) + " tokens, window " + std::to_string(window));
      at::Tensor packed = packed_heads(s, at::kFloat).to(at::kDouble);
      packed.select(1, s.heads + 2 * s.kv_heads - 1).mul_(300);
      packed.narrow(0, 1, 2).mul_(1e-3);  // some of whose numbers are below the smallest normal code
      packed.narrow(1, 0, 1).narrow(0, 0, 2).zero_();
      if (s.kv_heads > 1) packed.select(1, s.heads).zero_();
      const auto t = apart(s, packed.clone()), rounded = e4m3_heads(t);
      for (const at::Tensor& x : rounded) x.requires_grad_();
      AttentionOptions o = options(causal, 0, window);
      o.fp8 = true;
      const at::Tensor y = attention_of_packed(packed.requires_grad_(), s.kv_heads, sequences_of(s), o);
      const at::Tensor expected = attention_reference(rounded, s, o);
      EXPECT_LT(max_difference(y.detach(), expected), 1e-10);
      EXPECT_GT(max_difference(y.detach(), attention_reference(t, s, o)), 1e-3);
      const at::Tensor d = random(y.sizes(), 5);
      y.backward(d);
      expected.backward(d);
      EXPECT_LT(max_difference(packed.grad(), at::cat({rounded[0].grad(), rounded[1].grad(), rounded[2].grad()}, 1)),
                1e-9);
    }
  }
}

TEST(Attention, Fp8ValuesOfAllTypesKeepTheirScaleAndShowWhatIsNoNumber) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> t;
    for (const uint64_t seed : {1, 2, 3}) t.push_back(random({6, 2, 16}, seed, at::kFloat).to(dtype));
    const double largest = dtype == at::kHalf ? 6e4 : 3e38, smallest = dtype == at::kHalf ? 6e-8 : 1e-38;
    t[0].select(0, 0).mul_(largest / t[0].select(0, 0).abs().max().item<double>());
    t[1].select(1, 1).mul_(smallest);
    std::vector<at::Tensor> wide;
    for (const at::Tensor& x : t) wide.push_back(x.to(at::kDouble));
    const auto expected = e4m3_heads(wide);
    const auto check = [&] {
      const at::Tensor each[] = {fp8_values(t[0], t[0].size(1)), fp8_values(t[1], 0), fp8_values(t[2], 0)};
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(each[i].scalar_type(), dtype);
        EXPECT_TRUE(at::equal(each[i].nan_to_num(7).to(at::kDouble), expected[i].to(dtype).to(at::kDouble)))
            << c10::toString(dtype) << " " << i;
      }
    };
    check();
    // In rows and heads of their own; a row beside them stays as it is.
    const double nan = std::nan("");
    for (const double value : {nan, HUGE_VAL, -HUGE_VAL}) {
      t[0].select(0, 3).fill_(value);
      t[1].select(1, 0).fill_(value);
      t[2].select(1, 1).fill_(value);
      expected[0].select(0, 3).fill_(7);
      expected[1].select(1, 0).fill_(7);
      expected[2].select(1, 1).fill_(7);
      check();
    }
    // Beside one that is none the other numbers of a head stay numbers.
    const at::Tensor k = random({6, 2, 16}, 4, at::kFloat).to(dtype);
    k[2][1][3] = HUGE_VAL;
    EXPECT_EQ(fp8_values(k, 0).isnan().sum().item<int64_t>(), 1);
  }
}

/// Attention of each sequence as separate scores, mask, dropout decisions and softmax.
at::Tensor with_decisions(const Shape& s, const at::Tensor& packed, const AttentionOptions& o) {
  const double p = o.dropout.p;
  const auto t = apart(s, packed);
  const uint32_t threshold = attention_dropout_threshold(p);
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i + 1 < s.bounds.size(); ++i) {
    const int64_t begin = s.bounds[i], length = s.bounds[i + 1] - begin;
    std::vector<at::Tensor> heads;
    for (int64_t n = 0; n < s.heads; ++n) {
      const int64_t kv = n / (s.heads / s.kv_heads);
      const at::Tensor q = t[0].narrow(0, begin, length).select(1, n), k = t[1].narrow(0, begin, length).select(1, kv),
                       v = t[2].narrow(0, begin, length).select(1, kv);
      at::Tensor scores = at::matmul(q, k.t()) * o.scale;
      scores = scores.masked_fill(hidden_by(o, length), -INFINITY);
      at::Tensor kept = at::empty({length, length}, at::kBool);
      attention_keeps(dropout_key(o.dropout), keys_of(s)[i], static_cast<uint32_t>(n), length, threshold,
                      kept.mutable_data_ptr<bool>());
      const at::Tensor probabilities = at::softmax(scores, -1) * kept.to(at::kDouble) * (128.0 / (128 - threshold));
      heads.push_back(at::matmul(probabilities, v));
    }
    parts.push_back(at::stack(heads, 1));
  }
  return at::cat(parts, 0);
}

TEST(Attention, DropsTheDecidedProbabilities) {
  for (const Shape& s : kShapes) {
    for (const auto& [causal, window] : kMasks) {
      const at::Tensor packed = packed_heads(s);
      const AttentionOptions o = options(causal, 0.3, window);
      const at::Tensor ours = attention_of_packed(packed, s.kv_heads, sequences_of(s), o);
      EXPECT_LT(max_difference(ours, with_decisions(s, packed, o)), 1e-12) << "window " << window;
    }
  }
}

/// A factor rounded to bf16 would make all sums smaller by 0.33 %.
TEST(Attention, DropoutsFactorIsNotRoundedToBf16) {
  const Shape s{{0, 256}, 2, 2, 8};
  const at::Tensor packed = packed_heads(s).to(at::kBFloat16);
  packed.narrow(1, 4, 2).fill_(1);  // the values
  const AttentionOptions o = options(true, 0.1);
  const double ours = attention_of_packed(packed, 2, sequences_of(s), o).to(at::kDouble).sum().item<double>(),
               exact = with_decisions(s, packed.to(at::kDouble), o).sum().item<double>();
  EXPECT_NEAR(ours / exact, 1, 1e-3);
}

TEST(Attention, GradientsEqualDifferences) {
  for (const Shape& s : {kShapes[1], kShapes[3]}) {
    for (const auto& [causal, window] : kMasks) {
      for (const double p : {0.0, 0.3}) {
        const Sequences sequences = sequences_of(s);
        const AttentionOptions o = options(causal, p, window);
        const auto together = [&](const std::vector<at::Tensor>& t) {
          return project(attention_of_packed(t[0], s.kv_heads, sequences, o).square());
        };
        const auto separately = [&](const std::vector<at::Tensor>& t) {
          return project(attention(t[0], t[1], t[2], sequences, o).square());
        };
        EXPECT_LT(gradient_error(together, {packed_heads(s)}), 1e-6) << causal << ", " << window << ", p " << p;
        EXPECT_LT(gradient_error(separately, apart(s, packed_heads(s))), 1e-6)
            << causal << ", " << window << ", p " << p;
      }
    }
  }
}

TEST(Attention, APackOfThreeEqualsTheThreeAlone) {
  const Shape s{{0, 4, 5, 11}, 4, 2, 8};
  for (const double p : {0.0, 0.5}) {
    const at::Tensor packed = packed_heads(s),
                     together = attention_of_packed(packed, 2, sequences_of(s), options(true, p));
    for (size_t i = 0; i + 1 < s.bounds.size(); ++i) {
      const int32_t begin = s.bounds[i], length = s.bounds[i + 1] - begin;
      // Dropout decisions depend on the sequence's key only.
      const Sequences alone = make_sequences({0, length}, {keys_of(s)[i]}, at::kCPU);
      const at::Tensor own =
          attention_of_packed(packed.narrow(0, begin, length).contiguous(), 2, alone, options(true, p));
      EXPECT_LT(max_difference(together.narrow(0, begin, length), own), 1e-14) << i;
      if (p == 0 || length == 1) continue;
      const Sequences other = make_sequences({0, length}, {keys_of(s)[i] + 1}, at::kCPU);
      EXPECT_GT(max_difference(
                    own, attention_of_packed(packed.narrow(0, begin, length).contiguous(), 2, other, options(true, p))),
                1e-3);
    }
  }
}

TEST(Attention, ContinuesFromWhatItKept) {
  for (const Shape& s : kShapes) {
    for (const double p : {0.0, 0.3}) {
      for (const bool causal : {true, false}) {
        SCOPED_TRACE(std::to_string(s.tokens()) + " tokens, p " + std::to_string(p));
        const auto run = [&](KeptAttention* kept) {
          at::Tensor packed = packed_heads(s, at::kFloat).requires_grad_();
          const at::Tensor y = attention_of_packed(packed, s.kv_heads, sequences_of(s), options(causal, p), kept);
          y.backward(random(y.sizes(), 5, at::kFloat));
          return std::pair{y.detach(), packed.grad()};
        };
        KeptAttention kept;
        const auto [y, d] = run(nullptr);
        const auto [first, d_first] = run(&kept);
        ASSERT_FALSE(kept.empty());
        EXPECT_EQ(max_difference(y, first), 0);
        EXPECT_EQ(max_difference(d, d_first), 0);
        const KeptAttention before = kept;
        const auto [second, d_second] = run(&kept);
        EXPECT_EQ(second.const_data_ptr(), before[0].const_data_ptr());
        EXPECT_EQ(max_difference(d, d_second), 0);
        // The result is read, not computed.
        kept[0] = kept[0] * 0 + 7;
        EXPECT_EQ(max_difference(run(&kept).first, at::full_like(y, 7)), 0);
      }
    }
  }
}

TEST(Attention, CausalNeverLooksAhead) {
  const Shape s{{0, 6}, 2, 2, 4};
  for (const double p : {0.0, 0.3}) {
    at::Tensor packed = packed_heads(s);
    const at::Tensor before = attention_of_packed(packed, 2, sequences_of(s), options(true, p));
    packed.narrow(0, 4, 2).narrow(1, 2, 4).fill_(100);
    const at::Tensor after = attention_of_packed(packed, 2, sequences_of(s), options(true, p));
    EXPECT_EQ(max_difference(before.narrow(0, 0, 4), after.narrow(0, 0, 4)), 0);
    EXPECT_GT(max_difference(before.narrow(0, 4, 2), after.narrow(0, 4, 2)), 1);
  }
}

TEST(Attention, DecisionsHaveTheirRateAndNoPattern) {
  constexpr int64_t kLength = 256;
  const DropoutKey key = dropout_key({0.1, 5, {}, 3});
  const uint32_t threshold = attention_dropout_threshold(0.1);
  EXPECT_EQ(threshold, 13u);
  EXPECT_EQ(attention_dropout_threshold(0.0), 0u);
  EXPECT_EQ(attention_dropout_threshold(0.004), 1u);
  EXPECT_ANY_THROW(attention_dropout_threshold(0.0039));
  at::Tensor kept = at::empty({3, kLength, kLength}, at::TensorOptions(at::kBool));
  for (int64_t i = 0; i < 3; ++i)
    attention_keeps(key, 70 + i / 2, static_cast<uint32_t>(i % 2), kLength, threshold,
                    kept.mutable_data_ptr<bool>() + i * kLength * kLength);
  const at::Tensor x = kept.to(at::kDouble);
  const double rate = 1 - 13.0 / 128, deviation = std::sqrt(rate * (1 - rate) / (kLength * kLength));
  for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(x[i].mean().item<double>(), rate, 5 * deviation) << i;
  const at::Tensor c = (x - rate) / std::sqrt(rate * (1 - rate));
  // The decisions of other heads, other sequences, neighbouring elements and elements that share a draw are
  // uncorrelated.
  const double bound = 5.0 / kLength;
  EXPECT_LT(std::abs((c[0] * c[1]).mean().item<double>()), bound);
  EXPECT_LT(std::abs((c[0] * c[2]).mean().item<double>()), bound);
  for (const int64_t shift : {1, 8, 16})
    for (const int64_t dim : {0, 1})
      EXPECT_LT(std::abs((c[0] * c[0].roll(shift, dim)).mean().item<double>()), bound) << shift << " " << dim;
}

/// Backward keeps sums of dq for up to 128 rows more than each sequence has tokens.
TEST(Sequences, AreCutForBackwardWhereSumsWouldTakeMoreThanThePlanCounts) {
  const auto bounds = [](int64_t count, int32_t length) {
    std::vector<int32_t> all{0};
    for (int64_t i = 0; i < count; ++i) all.push_back(all.back() + length);
    return all;
  };
  EXPECT_EQ(cut_backward(bounds(8, 1024)), (std::vector<int64_t>{0, 8}));
  EXPECT_EQ(cut_backward(bounds(1, 3)), (std::vector<int64_t>{0, 1}));
  for (const int32_t length : {1, 10, 63, 127, 200}) {
    for (std::vector<int32_t> all : {bounds(8192 / length, length), bounds(7, length)}) {
      if (length == 10) all.push_back(all.back() + 4096);  // one long sequence among short ones
      const std::vector<int64_t> cuts = cut_backward(all);
      const int64_t most = std::max<int64_t>(1024, attention_sum_rows(all.back()));
      ASSERT_EQ(cuts.front(), 0);
      ASSERT_EQ(cuts.back(), static_cast<int64_t>(all.size()) - 1);
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        ASSERT_LT(cuts[i], cuts[i + 1]);
        int64_t rows = 0;
        for (auto s = static_cast<size_t>(cuts[i]); s < static_cast<size_t>(cuts[i + 1]); ++s)
          rows += all[s + 1] - all[s] + 128;
        EXPECT_LE(rows, most) << length;
      }
    }
  }
}

TEST(Sequences, RefuseImpossibleBoundaries) {
  EXPECT_ANY_THROW(make_sequences({}, {}, at::kCPU));
  EXPECT_ANY_THROW(make_sequences({1, 6}, {}, at::kCPU));            // does not start at 0
  EXPECT_ANY_THROW(make_sequences({0, 3, 3, 6}, {}, at::kCPU));      // empty sequence
  EXPECT_ANY_THROW(make_sequences({0, 3, 6}, {1, 2, 3}, at::kCPU));  // one key too many
  EXPECT_TRUE(make_sequences({0, 6, 12}, {}, at::kCPU).equal_lengths);
  EXPECT_FALSE(make_sequences({0, 1, 6, 12}, {}, at::kCPU).equal_lengths);
  EXPECT_EQ(make_sequences({0, 1, 6, 12}, {}, at::kCPU).longest, 6);
  const Shape s{{0, 6}, 2, 2, 4};
  const at::Tensor packed = packed_heads(s);
  EXPECT_ANY_THROW(attention_of_packed(packed, 2, make_sequences({0, 5}, {}, at::kCPU), options(true)));
  EXPECT_ANY_THROW(attention_of_packed(packed, 2, make_sequences({0, 6}, {}, at::kCPU), options(true, 0.3)))
      << "dropout without keys was accepted";
}

}  // namespace
}  // namespace trireme
