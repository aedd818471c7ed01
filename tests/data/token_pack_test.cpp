// Rows of tokens as one batch: positions and boundaries of packed sequences, weights of targets, the denominator.
#include "data/token_pack.h"
#include "trireme/base/error.h"

#include <gtest/gtest.h>

#include <numeric>

namespace trireme {
namespace {

/// Eight tokens: sequences of 5 and 3, targets 1, 2, 6 and 7.
Sample packed() {
  Sample sample;
  sample.input_ids = {10, 11, 12, 13, 14, 20, 21, 22};
  sample.loss_mask = {0, 1, 1, 0, 0, 0, 1, 1};
  sample.sequence_starts = {0, 5};
  return sample;
}

TEST(TokenPack, PutsRowsOneAfterTheOther) {
  const TokenPack pack = make_token_pack({packed(), filler_sample(8)}, {41, -1}, /*per_token=*/false);
  EXPECT_EQ(pack.rows, 2);
  EXPECT_EQ(pack.length, 8);
  EXPECT_EQ(pack.tokens, (std::vector<int64_t>{10, 11, 12, 13, 14, 20, 21, 22, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(pack.positions, (std::vector<int64_t>{0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(pack.boundaries, (std::vector<int32_t>{0, 5, 8, 16}));
  EXPECT_EQ(pack.sample_ids, (std::vector<int64_t>{41, -1}));
  // Position t predicts t + 1; four targets share the weight of a sample, and the filler has none.
  EXPECT_EQ(pack.loss_weights, (std::vector<float>{.25f, .25f, 0, 0, 0, .25f, .25f, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(pack.denominator, 1);
}

TEST(TokenPack, WeighsEveryTargetAlikePerToken) {
  const TokenPack pack = make_token_pack({packed(), pattern_sample(8, 100)}, {0, 1}, /*per_token=*/true);
  EXPECT_EQ(pack.denominator, 4 + 7);
  EXPECT_EQ(std::accumulate(pack.loss_weights.begin(), pack.loss_weights.end(), 0.0f), 11);
  EXPECT_EQ(pack.loss_weights[7], 0) << "nothing follows a row's last token";
  EXPECT_EQ(pack.loss_weights[15], 0);
}

TEST(TokenPack, SlicesJoinToTheWhole) {
  const TokenPack whole = make_token_pack({packed(), pattern_sample(8, 100), filler_sample(8)}, {41, 7, -1}, false);
  for (const int64_t count : {1, 2, 3, 4, 6, 8, 24}) {
    std::vector<int64_t> tokens, labels, positions;
    std::vector<float> weights;
    for (int64_t i = 0; i < count; ++i) {
      const TokenPack slice = token_slice(whole, i, count);
      EXPECT_EQ(slice.rows, 1);
      EXPECT_EQ(slice.length, 24 / count);
      EXPECT_EQ(slice.boundaries, whole.boundaries);
      EXPECT_EQ(slice.sequence_keys, whole.sequence_keys);
      EXPECT_EQ(slice.sample_ids, whole.sample_ids);
      EXPECT_EQ(slice.denominator, whole.denominator);
      tokens.insert(tokens.end(), slice.tokens.begin(), slice.tokens.end());
      labels.insert(labels.end(), slice.labels.begin(), slice.labels.end());
      positions.insert(positions.end(), slice.positions.begin(), slice.positions.end());
      weights.insert(weights.end(), slice.loss_weights.begin(), slice.loss_weights.end());
    }
    EXPECT_EQ(tokens, whole.tokens);
    EXPECT_EQ(positions, whole.positions);
    EXPECT_EQ(weights, whole.loss_weights);
    // The next token, also where it is in the next slice; the first of the own row behind its last.
    for (size_t t = 0; t < tokens.size(); ++t) EXPECT_EQ(labels[t], tokens[t % 8 == 7 ? t - 7 : t + 1]) << t;
  }
  const TokenPack labelled = make_token_pack({with_labels(packed())}, {0}, false);
  EXPECT_EQ(token_slice(labelled, 1, 2).labels, (std::vector<int64_t>{20, 21, 22, 10}));
  EXPECT_THROW(token_slice(whole, 0, 5), InternalError);
  EXPECT_THROW(token_slice(whole, 2, 2), InternalError);
}

TEST(TokenPack, RefusesRowsOfUnequalLength) {
  EXPECT_THROW(make_token_pack({packed(), filler_sample(7)}, {0, 1}, false), InternalError);
  EXPECT_THROW(make_token_pack({packed()}, {0, 1}, false), InternalError);
}

TEST(TokenPack, NamesTheAnswersOfPairs) {
  Sample one = packed(), two = packed();
  one.pairs = 1;
  two.sequence_starts = {0, 2, 4, 5, 7};  // the last one is padding
  two.loss_mask = {0, 1, 0, 1, 0, 0, 1, 0};
  two.pairs = 2;
  const TokenPack pack = make_token_pack({one, filler_sample(8), two}, {3, -1, 4}, /*per_token=*/true);
  EXPECT_EQ(pack.chosen, (std::vector<int64_t>{0, 3, 5}));
  EXPECT_EQ(pack.rejected, (std::vector<int64_t>{1, 4, 6}));
  EXPECT_EQ(pack.chosen_targets, (std::vector<double>{2, 1, 0}));
  EXPECT_EQ(pack.rejected_targets, (std::vector<double>{2, 1, 1}));
  EXPECT_EQ(pack.row_pairs, (std::vector<int64_t>{1, 2}));
  ASSERT_EQ(pack.row_keys.size(), 2u);
  EXPECT_NE(pack.row_keys[0], pack.row_keys[1]);
  // A key is the row's content's alone.
  EXPECT_EQ(make_token_pack({one}, {70}, true).row_keys[0], pack.row_keys[0]);
  one.input_ids[7] = 5;
  EXPECT_NE(make_token_pack({one}, {3}, true).row_keys[0], pack.row_keys[0]);
  EXPECT_TRUE(make_token_pack({packed()}, {0}, true).row_keys.empty());
}

}  // namespace
}  // namespace trireme
