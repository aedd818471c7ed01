// Sequences too long for an oracle of every element; compares tokens at the edges of tiles and scattered ones.

#include "attention_problem.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>

namespace trireme::kernels::testing::attention_long_tests {

namespace {

std::vector<int64_t> sampled_tokens(const std::vector<int32_t>& cu_seqlens) {
  std::vector<int64_t> tokens;
  std::mt19937_64 generator(7);
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const int64_t begin = cu_seqlens[s], length = cu_seqlens[s + 1] - begin;
    for (const int64_t from : {int64_t{0}, length / 256 * 128, length})
      for (const int64_t offset : {-129, -128, -127, -65, -64, -63, -1, 0, 1, 63, 64, 65, 127, 128})
        if (from + offset >= 0 && from + offset < length) tokens.push_back(begin + from + offset);
    for (int i = 0; i < 16; ++i)
      tokens.push_back(begin + static_cast<int64_t>(generator() % static_cast<uint64_t>(length)));
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

/// The values of the given tokens of [tokens, width].
Values at_tokens(const Values& all, const std::vector<int64_t>& tokens, int64_t width) {
  Values result;
  for (const int64_t t : tokens) result.insert(result.end(), all.begin() + t * width, all.begin() + (t + 1) * width);
  return result;
}

/// The largest relative error of a token among those for which `counts` is true.
template <class F>
double worst_token(const Values& actual, const Values& expected, const std::vector<int64_t>& tokens, const F& counts) {
  const auto width = static_cast<int64_t>(expected.size() / tokens.size());
  double worst = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!counts(tokens[i])) continue;
    const int64_t from = static_cast<int64_t>(i) * width;
    worst = std::max(worst, relative_error({actual.begin() + from, actual.begin() + from + width},
                                           {expected.begin() + from, expected.begin() + from + width}));
  }
  return worst;
}

class AttentionLongTest : public HopperKernelTest {};

TEST_F(AttentionLongTest, SampledTokensEqualTheOracle) {
  const std::pair<AttentionCase, Element> cases[] = {
      {{{0, 8191}, 2, 1, 128, true}, Element::kBF16},
      {{{0, 3000, 4500, 6000, 6300, 6301, 8192}, 4, 2, 128, true},
       Element::kBF16},  // some short enough to write dQ themselves
      {{{0, 2049}, 4, 2, 128, true}, Element::kF16},
      {{{0, 2048}, 3, 3, 128, false}, Element::kBF16},
      {{{0, 2500, 2501, 4600}, 2, 2, 64, true}, Element::kBF16},
      {{{0, 300, 8191}, 1, 1, 64, false, 1, 13}, Element::kF16},
  };
  for (const auto& [c, element] : cases) {
    AttentionProblem run(c, element);
    const std::vector<int64_t> tokens = sampled_tokens(c.cu_seqlens);
    const oracle::AttentionOutputs expected = run.expected_at(tokens);
    const int64_t rows = int64_t{c.q_heads} * c.d, keys = int64_t{c.kv_heads} * c.d;
    // With only a few keys or rows, gradients are small differences of large terms.
    const auto place = [&](int64_t token) { return std::upper_bound(c.cu_seqlens.begin(), c.cu_seqlens.end(), token); };
    const auto sees_many = [&](int64_t token) {
      return (c.causal ? token + 1 : *place(token)) - *(place(token) - 1) >= 32;
    };
    const auto seen_by_many = [&](int64_t token) {
      return *place(token) - (c.causal ? token : *(place(token) - 1)) >= 32;
    };
    const auto compare = [&](const char* what, const Values& all, const Values& oracle, int64_t width,
                             const auto& counts) {
      const Values actual = at_tokens(all, tokens, width);
      EXPECT_LT(relative_error(actual, oracle), attention_bound(element)) << what;
      EXPECT_LT(worst_token(actual, oracle, tokens, counts), attention_bound(element)) << what << ", one token";
    };
    {
      SCOPED_TRACE(name_of(c, element));
      CUDA_OK(run.forward());
      compare("o", run.o(), expected.o, rows, [](int64_t) { return true; });
      expect_close(run.lse(), expected.lse, Element::kF32, 4, 1e-3, "log-sum-exp");
    }
    for (const bool deterministic : {false, true}) {
      SCOPED_TRACE(name_of(c, element) + (deterministic ? " deterministic" : ""));
      run.poison_gradients();
      CUDA_OK(run.backward(deterministic));
      compare("dq", run.dq(), expected.dq, rows, sees_many);
      compare("dk", run.dk(), expected.dk, keys, seen_by_many);
      compare("dv", run.dv(), expected.dv, keys, [](int64_t) { return true; });
      EXPECT_TRUE(run.counters_are_zero());
    }
  }
}

TEST(AttentionOracleTest, SampledTokensEqualTheWhole) {
  oracle::AttentionInputs in{{0, 70, 71, 130}, 4, 2, 8, true, 0.4, {}, {}, {}, {}, 13, 5, 6, {3, 1, 2}};
  in.q = normal_values(130 * 4 * 8, Element::kF32, 1);
  in.k = normal_values(130 * 2 * 8, Element::kF32, 2);
  in.v = normal_values(130 * 2 * 8, Element::kF32, 3);
  in.d_o = normal_values(130 * 4 * 8, Element::kF32, 4);
  const std::vector<int64_t> tokens{0, 69, 70, 71, 100, 129};
  for (const bool causal : {true, false}) {
    in.causal = causal;
    const oracle::AttentionOutputs whole = oracle::attention(in), sampled = oracle::attention_at(in, tokens);
    EXPECT_EQ(sampled.lse, whole.lse);
    EXPECT_LT(relative_error(sampled.o, at_tokens(whole.o, tokens, 4 * 8)), 1e-12);
    EXPECT_LT(relative_error(sampled.dq, at_tokens(whole.dq, tokens, 4 * 8)), 1e-12);
    EXPECT_LT(relative_error(sampled.dk, at_tokens(whole.dk, tokens, 2 * 8)), 1e-12);
    EXPECT_LT(relative_error(sampled.dv, at_tokens(whole.dv, tokens, 2 * 8)), 1e-12);
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::attention_long_tests
