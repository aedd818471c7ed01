// Attention of a pass whose tokens are divided among ranks: threads of this process are the ranks.
#include "gradient_check.h"
#include "trireme/base/error.h"
#include "trireme/nn/sequence_exchange.h"
#include "trireme/ops/attention.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

namespace trireme {
namespace {

using namespace testing;

/// What the ranks have in common.
struct Meeting {
  explicit Meeting(int ranks) : there(ranks), parts(static_cast<size_t>(ranks)) {}
  std::barrier<> there;
  std::vector<at::Tensor> parts;
};

class ThreadExchange final : public SequenceExchange {
 public:
  ThreadExchange(int rank, int size, Meeting& meeting) : SequenceExchange(rank, size), meeting_(meeting) {}
  at::Tensor exchange(const at::Tensor& parts) override {
    EXPECT_TRUE(parts.is_contiguous() && parts.size(0) == size());
    meeting_.parts[static_cast<size_t>(rank())] = parts;
    meeting_.there.arrive_and_wait();
    std::vector<at::Tensor> received;
    for (const at::Tensor& sent : meeting_.parts) received.push_back(sent[rank()]);
    const at::Tensor result = at::stack(received);
    meeting_.there.arrive_and_wait();
    return result;
  }

 private:
  Meeting& meeting_;
};

struct Result {
  at::Tensor out, dq, dk, dv;
};

Result run(const std::vector<at::Tensor>& qkv, const at::Tensor& weights,
           const std::function<at::Tensor(const std::vector<at::Tensor>&)>& attend) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : qkv) leaves.push_back(x.detach().clone().requires_grad_());
  const at::Tensor out = attend(leaves);
  (out * weights).sum().backward();
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

struct Case {
  int64_t heads, kv_heads;
  int ranks;
};

class OverRanks : public ::testing::TestWithParam<Case> {};

TEST_P(OverRanks, EqualsAttentionOfTheWhole) {
  const auto [heads, kv_heads, ranks] = GetParam();
  constexpr int64_t kTokens = 24, kDim = 6;
  const std::vector<at::Tensor> qkv = {random({kTokens, heads, kDim}, 1), random({kTokens, kv_heads, kDim}, 2),
                                       random({kTokens, kv_heads, kDim}, 3)};
  const at::Tensor weights = random({kTokens, heads, kDim}, 4);
  // Sequences that end inside slices.
  const Sequences sequences = make_sequences({0, 5, 6, 17, 24}, {3, 90, 7, 12}, at::kCPU);
  for (const auto& [p, fp8] : {std::pair{0.0, false}, {0.25, false}, {0.0, true}}) {
    for (const bool causal : {true, false}) {
      const AttentionOptions options{.scale = 0.4, .causal = causal, .dropout = {p, 3, {}, 4}, .fp8 = fp8};
      const Result whole =
          run(qkv, weights, [&](const auto& x) { return attention(x[0], x[1], x[2], sequences, options); });
      Meeting meeting(ranks);
      std::vector<std::thread> threads;
      for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
          const int64_t count = kTokens / ranks;
          const auto mine = [&](const at::Tensor& x) { return x.narrow(0, rank * count, count); };
          ThreadExchange exchange(rank, ranks, meeting);
          const Result slice = run({mine(qkv[0]), mine(qkv[1]), mine(qkv[2])}, mine(weights), [&](const auto& x) {
            return attention_over_ranks(x[0], x[1], x[2], sequences, options, exchange);
          });
          EXPECT_LT(max_difference(slice.out, mine(whole.out)), 1e-13);
          EXPECT_LT(max_difference(slice.dq, mine(whole.dq)), 1e-13);
          EXPECT_LT(max_difference(slice.dk, mine(whole.dk)), 1e-13);
          EXPECT_LT(max_difference(slice.dv, mine(whole.dv)), 1e-13);
        });
      for (std::thread& thread : threads) thread.join();
    }
  }
}

// As many key heads as query heads; groups; fewer key heads than ranks; ranks whose heads straddle groups.
INSTANTIATE_TEST_SUITE_P(AttentionExchange, OverRanks,
                         ::testing::Values(Case{4, 4, 2}, Case{4, 4, 4}, Case{8, 4, 2}, Case{8, 2, 4}, Case{8, 1, 8},
                                           Case{12, 6, 4}, Case{12, 4, 6}, Case{6, 2, 3}, Case{3, 1, 1}));

TEST(AttentionExchange, KeyHeadsOfARank) {
  EXPECT_EQ(kv_heads_of_rank(32, 8, 1), 8);
  EXPECT_EQ(kv_heads_of_rank(32, 8, 4), 2);
  EXPECT_EQ(kv_heads_of_rank(32, 8, 16), 1);
  EXPECT_EQ(kv_heads_of_rank(12, 6, 4), 3);  // three query heads of groups of two: a key head for each
  EXPECT_THROW(kv_heads_of_rank(12, 6, 5), InternalError);
}

}  // namespace
}  // namespace trireme
