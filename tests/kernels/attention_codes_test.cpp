// The forward of attention in E4M3 codes.

#include "attention_problem.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace trireme::kernels::testing::attention_codes_tests {

namespace {

using Case = AttentionCase;
using Problem = AttentionProblem;

/// The value of the code of x: four significant bits, steps of 2^-9 below 2^-6, at most 448.
double e4m3(double x) {
  if (x == 0) return 0;
  const double step = std::exp2(std::max(std::floor(std::log2(std::abs(x))), -6.0) - 3);
  return std::clamp(std::nearbyint(x / step) * step, -448.0, 448.0);
}

/// Rounds `count` values at a time, `stride` apart, that share a scale.
void round_together(Values& x, size_t first, size_t count, size_t runs, size_t stride) {
  double amax = 0;
  const auto each = [&](const auto& f) {
    for (size_t r = 0; r < runs; ++r)
      for (size_t i = 0; i < count; ++i) f(x[first + r * stride + i]);
  };
  each([&](double& v) { amax = std::max(amax, std::abs(v)); });
  if (amax == 0) return;
  const double scale = std::exp2(std::floor(std::log2(448 / amax)));
  each([&](double& v) { v = e4m3(v * scale) / scale; });
}

oracle::AttentionInputs rounded(const oracle::AttentionInputs& in) {
  oracle::AttentionInputs out = in;
  const auto d = static_cast<size_t>(in.d), tokens = static_cast<size_t>(in.cu_seqlens.back()),
             width = d * static_cast<size_t>(in.kv_heads);
  for (size_t row = 0; row < out.q.size() / d; ++row) round_together(out.q, row * d, d, 1, 0);
  for (Values* x : {&out.k, &out.v})
    for (size_t head = 0; head * d < width; ++head) round_together(*x, head * d, d, tokens, width);
  return out;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool causal : {false, true}) {
    for (const std::vector<int32_t>& bounds : std::vector<std::vector<int32_t>>{
             {0, 1}, {0, 63}, {0, 65}, {0, 128}, {0, 129}, {0, 511}, {0, 1, 64, 65, 193, 386, 500}, {0, 1100}})
      all.push_back({bounds, 2, 1, 128, causal});
    all.push_back({{0, 200, 333}, 3, 3, 128, causal});
    all.push_back({{0, 200, 1333}, 8, 1, 128, causal});
    all.push_back({{0, 30, 333}, 12, 2, 128, causal});
    all.push_back({{0, 200, 333}, 2, 1, 128, causal, 30.0});
    all.push_back({{0, 1200}, 2, 1, 128, causal, 4.0});
  }
  std::vector<int32_t> many{0};
  for (int i = 0; i < 110; ++i) many.push_back(many.back() + 40 + i % 140);
  all.push_back({many, 4, 4, 128, true});
  all.push_back({many, 16, 2, 128, true});
  for (Case& c : all) c.codes = true;
  return all;
}

class AttentionCodesTest : public HopperKernelTest {};

TEST_F(AttentionCodesTest, ForwardEqualsTheOracleOfTheCodes) {
  for (const Element element : {Element::kBF16, Element::kF16}) {
    for (const Case& c : cases()) {
      SCOPED_TRACE(name_of(c, element));
      Problem run(c, element);
      run.poison();
      CUDA_OK(run.forward());
      const oracle::AttentionOutputs expected = oracle::attention(rounded(run.inputs()));
      // Probabilities have four significant bits.
      const Values o = run.o();
      EXPECT_LT(relative_error(o, expected.o), 0.03);
      const double norm = std::inner_product(expected.o.begin(), expected.o.end(), expected.o.begin(), 0.0);
      EXPECT_NEAR(std::inner_product(o.begin(), o.end(), expected.o.begin(), 0.0) / norm, 1, 0.004);
      const double size = c.size * c.size;
      expect_close(run.lse(), expected.lse, Element::kF32, 4, 4e-3 * size, "log-sum-exp");
      EXPECT_TRUE(run.counters_are_zero());
      const std::vector<unsigned char> bits = run.o_bytes();
      run.poison();
      CUDA_OK(run.forward());
      EXPECT_EQ(run.o_bytes(), bits);
    }
  }
}

TEST_F(AttentionCodesTest, RoundsToTheValuesOfTheCodes) {
  for (const Element element : {Element::kBF16, Element::kF16}) {
    Problem run({{0, 1000}, 3, 2, 128, true, 20.0}, element);
    const int64_t tokens = 1000, heads = 7;
    DeviceArray values(tokens * heads * 128, element), amax(4, Element::kF32);
    values.poison();
    amax.poison();
    CUDA_OK(attention_round({run.forward_arguments().q, tokens, 7, 3, values.data(), amax.fp32(), element}, nullptr));
    const oracle::AttentionInputs expected = rounded(run.inputs());
    Values packed;
    for (size_t t = 0; t < 1000; ++t)
      for (const auto& [x, count] : {std::pair{&expected.q, 3}, {&expected.k, 2}, {&expected.v, 2}}) {
        const auto width = static_cast<size_t>(count) * 128;
        packed.insert(packed.end(), x->begin() + static_cast<int64_t>(t * width),
                      x->begin() + static_cast<int64_t>((t + 1) * width));
      }
    EXPECT_EQ(values.values(), packed);
  }
}

TEST_F(AttentionCodesTest, LongSumsLoseNoBits) {
  // All values are positive and all weights alike: a sum that lost its last bits would be too small.
  const int64_t tokens = 40'000;
  Case c{{0, static_cast<int32_t>(tokens)}, 1, 1, 128, false, 0.01};
  c.codes = true;
  Problem run(c, Element::kBF16);
  for (int64_t token = 0; token < tokens; ++token) run.fill_token(Problem::Input::kV, token, 1.25);
  run.poison();
  CUDA_OK(run.forward());
  for (const double x : run.o()) ASSERT_NEAR(x, 1.25, 0.01);
}

TEST_F(AttentionCodesTest, ManySmallProbabilitiesCount) {
  // One key has a score of 1.125 sqrt(128), all others 0: codes have 0 for a probability of 2^-18.4 of the largest, but
  // together the others weigh 6 % of it.
  const int64_t tokens = 20'000;
  for (const int64_t sink : {int64_t{0}, tokens / 2, tokens - 1}) {
    Case c{{0, static_cast<int32_t>(tokens)}, 1, 1, 128, false};
    c.codes = true;
    Problem run(c, Element::kBF16);
    for (int64_t token = 0; token < tokens; ++token) {
      run.fill_token(Problem::Input::kQ, token, 1);
      run.fill_token(Problem::Input::kK, token, token == sink ? 1.125 : 0);
      run.fill_token(Problem::Input::kV, token, token == sink ? 1 : 2);
    }
    run.poison();
    CUDA_OK(run.forward());
    const double others = (tokens - 1) * std::exp(-1.125 * std::sqrt(128.0));
    for (const double x : run.o()) ASSERT_NEAR(x, (1 + 2 * others) / (1 + others), 0.008);
    for (const double x : run.lse()) ASSERT_NEAR(x, 1.125 * std::sqrt(128.0) + std::log1p(others), 1e-3);
  }
}

TEST_F(AttentionCodesTest, NaNShows) {
  for (const auto input : {Problem::Input::kQ, Problem::Input::kK, Problem::Input::kV}) {
    for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      Case c{{0, 300, 500}, 4, 2, 128, true};
      c.codes = true;
      Problem run(c, Element::kBF16);
      run.fill_token(input, 100, value);
      run.poison();
      CUDA_OK(run.forward());
      const Values o = run.o();
      const size_t width = 4 * 128;
      for (size_t i = 100 * width; i < 101 * width; ++i) ASSERT_TRUE(std::isnan(o[i]));
      // The scale of a row of queries is its own.
      for (size_t i = 0; input == Problem::Input::kQ && i < o.size(); ++i)
        ASSERT_TRUE(i / width == 100 || std::isfinite(o[i])) << i;
    }
  }
}

TEST_F(AttentionCodesTest, RefusesWhatItCannotServe) {
  Case c{{0, 300}, 2, 2, 128, true};
  c.codes = true;
  Problem run(c, Element::kBF16);
  AttentionForward a = run.forward_arguments();
  a.shape.window = 100;
  EXPECT_EQ(attention_forward(a, nullptr), cudaErrorInvalidValue);
  a = run.forward_arguments();
  a.dropout.threshold = 13;
  EXPECT_EQ(attention_forward(a, nullptr), cudaErrorInvalidValue);
  a = run.forward_arguments();
  a.blocks = nullptr;
  EXPECT_EQ(attention_forward(a, nullptr), cudaErrorInvalidValue);
  a = run.forward_arguments();
  a.shape.d = 64;
  EXPECT_EQ(attention_forward(a, nullptr), cudaErrorInvalidValue);
}

}  // namespace

}  // namespace trireme::kernels::testing::attention_codes_tests
