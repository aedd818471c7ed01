#include "attention_problem.h"

#include <algorithm>
#include <utility>

namespace trireme::kernels::testing {

namespace {

constexpr Element kHalfElements[] = {Element::kBF16, Element::kF16};

using Case = AttentionCase;
using Problem = AttentionProblem;
double bound(Element element) { return attention_bound(element); }

std::vector<Case> cases(bool backward) {
  std::vector<Case> all;
  for (const int d : {64, 128}) {
    for (const bool causal : {false, true}) {
      for (const std::vector<int32_t>& bounds : std::vector<std::vector<int32_t>>{{0, 1},
                                                                                  {0, 63},
                                                                                  {0, 65},
                                                                                  {0, 128},
                                                                                  {0, 511},
                                                                                  {0, 512},
                                                                                  {0, 1, 64, 65, 193, 386, 500},
                                                                                  {0, 320, 321, 640}}) {
        all.push_back({bounds, 2, 1, d, causal});
        // Heads that share no keys: where they are short, sums of dQ stay on chip.
        if (d == 64) all.push_back({bounds, 2, 2, d, causal});
      }
      all.push_back({{0, 200, 333}, 3, 3, d, causal});
      all.push_back({{0, 200, 333}, 8, 1, d, causal});
      all.push_back({{0, 30, 333}, 12, 2, d, causal});  // six heads read one key head: no power of two
      all.push_back({{0, 200, 333}, 2, 1, d, causal, 30.0});  // rows that are nearly one-hot
      all.push_back({{0, 333}, 2, 1, d, causal, 4.0});         // some rows outgrow their first block's maximum by far, some a little
    }
  }
  // More pieces of work than any GPU has multiprocessors: every block of the staying grid takes a second and a third.
  std::vector<int32_t> many{0};
  for (int i = 0; i < 110; ++i) many.push_back(many.back() + 40 + i % 40);
  for (const int d : {64, 128}) all.push_back({many, 4, 4, d, true});
  all.push_back({many, 16, 2, 128, true});
  all.push_back({many, 4, 4, 64, false, 1, 13});
  all.push_back({{0, 100, 256, 300, 512}, 4, 4, 64, false, 1, 13});
  all.push_back({{0, 512}, 2, 2, 64, false, 1, 64});
  if (!backward) all.push_back({{0, 2047}, 2, 1, 128, true});
  return all;
}

class AttentionTest : public KernelTest {};

TEST_F(AttentionTest, ForwardEqualsTheOracle) {
  for (const Element element : kHalfElements) {
    for (const Case& c : cases(false)) {
      SCOPED_TRACE(name_of(c, element));
      Problem run(c, element);
      CUDA_OK(run.forward());
      const oracle::AttentionOutputs expected = run.expected();
      EXPECT_LT(relative_error(run.o(), expected.o), bound(element));
      expect_close(run.lse(), expected.lse, Element::kF32, 4, 1e-3, "log-sum-exp");
      // Short sequences and long ones go different ways.
      run.poison();
      CUDA_OK(run.forward_of_unknown_length());
      EXPECT_LT(relative_error(run.o(), expected.o), bound(element));
      expect_close(run.lse(), expected.lse, Element::kF32, 4, 1e-3, "log-sum-exp");
      EXPECT_TRUE(run.counters_are_zero());
    }
  }
}

TEST_F(AttentionTest, BackwardEqualsTheOracle) {
  for (const Element element : kHalfElements) {
    for (const Case& c : cases(true)) {
      Problem run(c, element);
      CUDA_OK(run.forward());
      const oracle::AttentionOutputs expected = run.expected();
      for (const auto& [deterministic, finishes] : {std::pair{false, true}, {false, false}, {true, false}}) {
        SCOPED_TRACE(name_of(c, element) + (deterministic ? " deterministic" : finishes ? "" : " sums of all blocks"));
        run.poison_gradients();
        CUDA_OK(run.backward(deterministic, finishes));
        // A sequence of one token has no gradient to q and k: only noise of the order of a rounding of dp - delta.
        const bool single = c.cu_seqlens == std::vector<int32_t>{0, 1};
        // Nearly one-hot rows: ds = p (dp - delta) is a small difference, delta of the rounded o. On such rows (200 tokens, d 64, bf16) cuDNN's and
        // LibTorch's flash attention are 2.2e-2 from fp64 in dq and 1.7e-2 in dk, as these kernels are.
        const double size = c.size > 1 ? 8 : 2;
        if (!single) {
          EXPECT_LT(relative_error(run.dq(), expected.dq), size * bound(element));
          EXPECT_LT(relative_error(run.dk(), expected.dk), size * bound(element));
        }
        EXPECT_LT(relative_error(run.dv(), expected.dv), bound(element));
        for (const double x : run.dq()) ASSERT_TRUE(std::isfinite(x));
        for (const double x : run.dk()) ASSERT_TRUE(std::isfinite(x));
        EXPECT_TRUE(run.counters_are_zero());
      }
    }
  }
}

TEST_F(AttentionTest, DeterministicRunsRepeatTheirBits) {
  for (const int d : {64, 128}) {
    Problem run({{0, 700, 2048, 3000}, 8, 2, d, true}, Element::kBF16);
    CUDA_OK(run.forward());
    const std::vector<unsigned char> o = run.o_bytes();
    CUDA_OK(run.backward(true));
    const std::vector<unsigned char> gradients = run.gradient_bytes();
    for (int i = 0; i < 20; ++i) {
      run.poison();
      CUDA_OK(run.forward());
      CUDA_OK(run.backward(true));
      ASSERT_EQ(run.o_bytes(), o) << "d " << d << ", run " << i;
      ASSERT_EQ(run.gradient_bytes(), gradients) << "d " << d << ", run " << i;
    }
  }
}

TEST_F(AttentionTest, KeysAndValuesGradientsRepeatTheirBitsAlways) {
  Problem run({{0, 700, 2048, 3000}, 8, 2, 128, true}, Element::kBF16);
  CUDA_OK(run.forward());
  CUDA_OK(run.backward(true));
  const Values in_key_order = run.dq();
  run.poison();
  CUDA_OK(run.forward());
  CUDA_OK(run.backward(false));
  EXPECT_LT(relative_error(run.dq(), in_key_order), bound(Element::kBF16));
  const Values dk = run.dk(), dv = run.dv();
  for (int i = 0; i < 5; ++i) {
    CUDA_OK(run.backward(false));
    ASSERT_EQ(run.dk(), dk);
    ASSERT_EQ(run.dv(), dv);
  }
}

TEST_F(AttentionTest, ForwardAwaitsTheKernelBeforeIt) {
  // Its blocks may be on the device before the last ones of that kernel, which writes this one's queries where NaNs were.
  for (const int d : {64, 128}) {
    Problem run({{0, 700, 2048, 3000}, 8, 2, d, true}, Element::kBF16);
    const AttentionForward first = run.forward_arguments();
    AttentionForward second = first;
    second.q = first.o;
    second.o = run.backward_arguments(false).d_q;
    run.poison();
    CUDA_OK(attention_forward(first, nullptr));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(attention_forward(second, nullptr));
    const Values expected = run.dq();
    for (const double x : expected) ASSERT_TRUE(std::isfinite(x));
    for (int i = 0; i < 20; ++i) {
      run.poison();
      CUDA_OK(attention_forward(first, nullptr));
      CUDA_OK(attention_forward(second, nullptr));
      ASSERT_EQ(run.dq(), expected) << "d " << d << ", run " << i;
    }
  }
}

TEST_F(AttentionTest, RefusesWhatItCannotServe) {
  Problem run({{0, 64}, 2, 2, 64, true}, Element::kBF16);
  AttentionForward a = run.forward_arguments();
  a.shape.d = 96;
  EXPECT_EQ(attention_forward(a, nullptr), cudaErrorInvalidValue);
  a = run.forward_arguments();
  a.shape.kv_heads = 3;
  EXPECT_EQ(attention_forward(a, nullptr), cudaErrorInvalidValue);
  a = run.forward_arguments();
  a.q.strides.token = 65;
  EXPECT_EQ(attention_forward(a, nullptr), cudaErrorInvalidValue);
  a = run.forward_arguments();
  a.shape.element = Element::kF32;
  EXPECT_EQ(attention_forward(a, nullptr), cudaErrorInvalidValue);
  a = run.forward_arguments();
  a.shape.causal = false;
  a.dropout.threshold = 13;
  a.longest = 65537;
  EXPECT_EQ(attention_forward(a, nullptr), cudaErrorInvalidValue);
}

TEST(AttentionPlanTest, TilesCoverEverySequenceOnce) {
  const std::vector<int32_t> bounds{0, 1, 130, 1000, 1064, 3113};
  for (const int d : {64, 128}) {
    for (const bool causal : {false, true}) {
      const AttentionPlan plan = plan_attention(bounds.data(), static_cast<int64_t>(bounds.size()) - 1, d, causal);
      EXPECT_TRUE(plan.sequences.empty()) << "a sequence of 2049";
      EXPECT_EQ(plan.longest, 2049);
      for (const bool forward : {true, false}) {
        const int rows = forward ? attention_forward_rows(d, causal) : kAttentionBackwardKeys;
        const std::vector<AttentionTile>& tiles = forward ? plan.forward : plan.backward;
        std::vector<int> seen(3113);
        int64_t previous = INT64_MAX;
        for (size_t i = 0; i < tiles.size(); ++i) {
          const AttentionTile& t = tiles[i];
          EXPECT_EQ(t.begin, bounds[static_cast<size_t>(t.sequence)]);
          EXPECT_EQ(t.end, bounds[static_cast<size_t>(t.sequence) + 1]);
          for (int32_t r = t.first; r < std::min(t.end, t.first + rows); ++r) ++seen[static_cast<size_t>(r)];
          if (forward) {
            // Most keys first.
            const int64_t work = causal ? std::min(t.end, t.first + rows) - t.begin : t.end - t.begin;
            EXPECT_LE(work, previous);
            previous = work;
            continue;
          }
          // The longest sequence first, its tiles in ascending order.
          EXPECT_EQ(t.list, i < 17 ? 0 : AttentionTile::kShortSequences);
          EXPECT_EQ(t.list_count, (t.end - t.begin + rows - 1) / rows);
          EXPECT_EQ(t.first, t.begin + (static_cast<int32_t>(i) - t.list_begin) * rows);
          EXPECT_LE(t.end - t.begin, i == 0 ? 2049 : tiles[i - 1].end - tiles[i - 1].begin);
          // A tile waits only for tiles before it.
          for (size_t later = i + 1; later < tiles.size(); ++later)
            EXPECT_TRUE(tiles[later].sequence != t.sequence || tiles[later].first > t.first);
        }
        EXPECT_EQ(plan.short_blocks, 2 * (7 + 2 + 1 + 1));
        for (size_t b = 0; b < plan.blocks.size(); ++b) EXPECT_EQ(plan.blocks[b].is_short, b < 2 * (7 + 2 + 1 + 1));
        EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
      }
    }
  }
}

TEST(AttentionPlanTest, SequencesAreListsOfTheirOwnButTheLastLongOnes) {
  // Key tiles: 24, 14, 12, 10, then 8 and 2.
  const std::vector<int32_t> bounds{0, 3000, 4790, 6300, 7580, 8600, 8800};
  const auto begins_of_lists = [](const AttentionPlan& plan) {
    std::vector<std::pair<int32_t, int32_t>> lists;
    for (const AttentionTile& t : plan.backward)
      if (lists.empty() || lists.back().first != t.list_begin) lists.emplace_back(t.list_begin, t.list);
    return lists;
  };
  // The first is long enough for two sections, after which the next goes down as well.
  EXPECT_EQ(begins_of_lists(plan_attention(bounds.data(), 3, 128, true)), (std::vector<std::pair<int32_t, int32_t>>{{0, 0}, {24, 2}, {38, 3}}));
  const AttentionPlan plan = plan_attention(bounds.data(), 6, 128, true);
  constexpr int32_t kShort = AttentionTile::kShortSequences;
  EXPECT_EQ(begins_of_lists(plan), (std::vector<std::pair<int32_t, int32_t>>{{0, 0}, {24, 2}, {38, 3}, {50, kShort}}));
  for (size_t i = 51; i < plan.backward.size(); ++i)
    EXPECT_GE(plan.backward[i - 1].end - plan.backward[i - 1].first, plan.backward[i].end - plan.backward[i].first);
  EXPECT_EQ(plan.short_blocks, 2 * (10 + 8 + 2));
  for (size_t b = 0; b < plan.blocks.size(); ++b) EXPECT_EQ(plan.blocks[b].is_short, b >= 2 * (24 + 14 + 12)) << b;
  // Short ones only: each a list.
  const std::vector<int32_t> small{0, 1020, 1220};
  EXPECT_EQ(begins_of_lists(plan_attention(small.data(), 2, 128, true)), (std::vector<std::pair<int32_t, int32_t>>{{0, kShort}, {8, kShort}}));
}

TEST(AttentionPlanTest, ShortSequencesOfNarrowHeadsAreTakenWhole) {
  const std::vector<int32_t> bounds{0, 100, 612, 613};
  EXPECT_TRUE(plan_attention(bounds.data(), 3, 128, true).sequences.empty());
  const AttentionPlan plan = plan_attention(bounds.data(), 3, 64, true);
  ASSERT_EQ(plan.sequences.size(), 3u);
  EXPECT_EQ(plan.sequences[0].sequence, 1);
  EXPECT_EQ(plan.sequences[1].sequence, 0);
  EXPECT_EQ(plan.sequences[2].sequence, 2);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.sequences[i].list_begin, static_cast<int32_t>(i));
    EXPECT_EQ(plan.sequences[i].list_count, 1);
  }
}

}  // namespace

}  // namespace trireme::kernels::testing
