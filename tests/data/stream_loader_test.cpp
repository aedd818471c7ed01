// The ranks of a run on one document stream: the same rows on any number of them, also when another number goes on from
// a saved place.

#include "data/stream/stream_loader.h"
#include "../base/base_testing.h"
#include "stream_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace trireme {
namespace {

/// Rows of steps [from, to) of all ranks of a world, in the run's order.
std::vector<Tokens> rows_of(std::vector<StreamLoader>& ranks, int64_t from, int64_t to, int64_t per_step) {
  const auto world = static_cast<int64_t>(ranks.size());
  std::vector<Tokens> rows(static_cast<size_t>((to - from) * per_step));
  for (int64_t rank = 0; rank < world; ++rank) {
    for (int64_t step = from; step < to; ++step) {
      ranks[static_cast<size_t>(rank)].begin_step(step);
      for (int64_t i = rank; i < per_step; i += world)
        rows[static_cast<size_t>((step - from) * per_step + i)] =
            ranks[static_cast<size_t>(rank)].row(step * per_step + i);
      ranks[static_cast<size_t>(rank)].end_step(step);
    }
  }
  return rows;
}

std::vector<StreamLoader> world_of(const std::shared_ptr<const TokenStream>& stream, int world) {
  std::vector<StreamLoader> ranks;
  for (int rank = 0; rank < world; ++rank) ranks.emplace_back(stream, rank, world);
  return ranks;
}

std::vector<double> joint_state(const std::vector<StreamLoader>& ranks, int64_t step) {
  std::vector<double> all;
  for (const StreamLoader& rank : ranks) {
    const auto mine = rank.state(step);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  return all;
}

TEST(StreamLoader, OrderDependsOnTheSeedNotOnTheRanks) {
  const auto rows = [](uint64_t seed, int world) {
    const auto stream = hundred(16, 12, seed);
    auto ranks = world_of(stream, world);
    return rows_of(ranks, 0, 6, 24);
  };
  const auto one = rows(1, 1);
  for (const int world : {2, 3, 4, 6, 12}) EXPECT_EQ(rows(1, world), one) << world;
  EXPECT_NE(rows(2, 1), one);
}

TEST(StreamLoader, ReloadMidEpochAtOtherWorldSizes) {
  const auto stream = hundred(16, 12);
  auto whole = world_of(stream, 1);
  const auto expected = rows_of(whole, 0, 12, 24);
  // 1 -> 2 -> 4 -> 3 ranks, three steps each.
  std::vector<Tokens> read;
  std::vector<double> state;
  for (const int world : {1, 2, 4, 3}) {
    auto ranks = world_of(stream, world);
    const auto done = static_cast<int64_t>(read.size()) / 24;
    if (done > 0) {
      for (StreamLoader& rank : ranks) ASSERT_TRUE(rank.restore(done, state));
    }
    const auto rows = rows_of(ranks, done, done + 3, 24);
    read.insert(read.end(), rows.begin(), rows.end());
    state = joint_state(ranks, done + 3);
    EXPECT_LT(state.size(), 12u * 5 + 4 * 4 + 1);
  }
  EXPECT_EQ(read, expected);
}

TEST(StreamLoader, ReloadAfterACompleteEpoch) {
  const auto stream =
      stream_of({{"a", 1, made(48, [](int64_t) { return 8; })}}, {.seq_length = 8, .logical_shards = 12, .seed = 6});
  auto one = world_of(stream, 1);
  const auto expected = rows_of(one, 0, 8, 12);  // 4 steps are an epoch
  auto first = world_of(stream, 2);
  (void)rows_of(first, 0, 4, 12);
  auto second = world_of(stream, 4);
  for (StreamLoader& rank : second) ASSERT_TRUE(rank.restore(4, joint_state(first, 4)));
  const auto rest = rows_of(second, 4, 8, 12);
  EXPECT_EQ(rest, std::vector<Tokens>(expected.begin() + 48, expected.end()));
  std::set<int64_t> documents;
  for (const Tokens& row : rest) documents.insert(row.front() / kStride);
  EXPECT_EQ(documents.size(), 48u);
}

TEST(StreamLoader, MultiReloadStress) {
  const auto parts = [] {
    return std::vector<StreamPart>{{"a", 3, made(37, [](int64_t i) { return 1 + i * 5; })},
                                   {"b", 1, made(11, [](int64_t i) { return 300 - i * 20; }, 500'000)}};
  };
  const StreamOptions options = {.seq_length = 24, .logical_shards = 12, .seed = 11, .bos = 1, .eos = 2, .bol = 3};
  auto one = world_of(stream_of(parts(), options), 1);
  const auto expected = rows_of(one, 0, 40, 12);
  std::vector<Tokens> read;
  std::vector<double> state;
  const int worlds[] = {3, 1, 12, 4, 2, 6};
  for (int64_t step = 0; step < 40; ++step) {
    auto ranks = world_of(stream_of(parts(), options), worlds[step % 6]);
    if (step > 0) {
      for (StreamLoader& rank : ranks) ASSERT_TRUE(rank.restore(step, state));
    }
    const auto rows = rows_of(ranks, step, step + 1, 12);
    read.insert(read.end(), rows.begin(), rows.end());
    state = joint_state(ranks, step + 1);
  }
  EXPECT_EQ(read, expected);
}

TEST(StreamLoader, TheStateIsThatOfTheStepNotOfWhatWasReadAhead) {
  const auto stream = hundred(16, 4);
  StreamLoader loader(stream, 0, 1), other(stream, 0, 1);
  std::vector<StreamLoader> ranks = {loader};
  const auto rows = rows_of(ranks, 0, 6, 4);
  const auto after_four = ranks[0].state(4);  // steps 4 and 5 are read ahead
  ASSERT_TRUE(other.restore(4, after_four));
  std::vector<StreamLoader> resumed = {other};
  EXPECT_EQ(rows_of(resumed, 4, 6, 4), std::vector<Tokens>(rows.begin() + 16, rows.end()));
  // A step is read again where its numbers are looked into, and the stream goes on after that.
  EXPECT_EQ(rows_of(ranks, 4, 5, 4), std::vector<Tokens>(rows.begin() + 16, rows.begin() + 20));
  EXPECT_EQ(rows_of(ranks, 5, 6, 4), std::vector<Tokens>(rows.begin() + 20, rows.end()));
  EXPECT_THROW(ranks[0].begin_step(0), InternalError);
  EXPECT_THROW(ranks[0].begin_step(9), InternalError);
}

TEST(StreamLoader, AStepThatIsReadAgainLeavesTheStepsAheadOfItAlone) {
  const auto stream = hundred(16, 4);
  std::vector<StreamLoader> whole = world_of(stream, 1), ranks = world_of(stream, 1);
  const auto rows = rows_of(whole, 0, 12, 4);
  (void)rows_of(ranks, 0, 4, 4);
  // Step 1 is looked into while step 2 is done and step 3 is read.
  for (int64_t again = 1; again < 8; ++again) {
    const auto before = ranks[0].state(again + 2);
    EXPECT_EQ(rows_of(ranks, again, again + 1, 4),
              std::vector<Tokens>(rows.begin() + again * 4, rows.begin() + (again + 1) * 4));
    EXPECT_EQ(ranks[0].state(again + 2), before);
    EXPECT_EQ(rows_of(ranks, again + 2, again + 4, 4),
              std::vector<Tokens>(rows.begin() + (again + 2) * 4, rows.begin() + (again + 4) * 4));
  }
}

TEST(StreamLoader, ScalablePartitioning) {
  const auto stream = hundred(16, 960);
  for (const int world : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 64})
    EXPECT_NO_THROW(StreamLoader(stream, 0, world));
  const std::string text = message_of<ConfigError>([&] { StreamLoader(stream, 0, 7); });
  EXPECT_TRUE(contains(text, "data.logical_shards 960 does not divide over 7 ranks: run 6 or 8"));
  EXPECT_TRUE(contains(text, "966"));
  StreamLoader second(stream, 1, 2);
  second.begin_step(0);
  EXPECT_THROW(second.row(0), InternalError);
}

TEST(StreamLoader, DamagedStatesAreRefused) {
  const auto stream = hundred(16, 4);
  std::vector<StreamLoader> ranks = world_of(stream, 2);
  (void)rows_of(ranks, 0, 2, 4);
  const auto good = joint_state(ranks, 2);
  StreamLoader loader(stream, 0, 1);
  ASSERT_TRUE(loader.restore(2, good));
  EXPECT_THROW(loader.restore(2, ranks[0].state(2)), ModelError);  // half of the shards
  EXPECT_THROW(loader.restore(2, {}), ModelError);
  auto twice = ranks[0].state(2);
  twice.insert(twice.end(), twice.begin(), twice.end());
  EXPECT_THROW(loader.restore(2, twice), ModelError);
  for (size_t i = 0; i < good.size(); ++i) {
    for (const double value : {-2.0, 0.5, 9007199254740992.0, 1e300, std::nan("")}) {
      auto bad = good;
      bad[i] = value;
      EXPECT_THROW((void)loader.restore(2, bad), ModelError) << i << " is " << value;
    }
    EXPECT_THROW((void)loader.restore(2, std::vector<double>(good.begin(), good.begin() + static_cast<long>(i))),
                 ModelError);
  }
  const auto other = hundred(16, 8);
  EXPECT_FALSE(StreamLoader(other, 0, 1).restore(2, good));
}

}  // namespace
}  // namespace trireme
