// The order of work on the host: the tiles, the lists that they are in, and which tiles may wait for which.

#include "kernels/attention/tile_queue.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

namespace trireme::kernels::testing::attention_plan_tests {

namespace {

constexpr int32_t kShort = AttentionTile::kShortSequences;

/// The first tile and the number of each list of the backward pass.
std::vector<std::pair<int32_t, int32_t>> lists(const AttentionPlan& plan) {
  std::vector<std::pair<int32_t, int32_t>> all;
  for (const AttentionTile& t : plan.backward)
    if (all.empty() || all.back().first != t.list_begin) all.emplace_back(t.list_begin, t.list);
  return all;
}

AttentionPlan backward_plan(const std::vector<int32_t>& bounds, bool causal = true) {
  return plan_attention(bounds.data(), static_cast<int64_t>(bounds.size()) - 1, 128, causal);
}

TEST(AttentionPlanTest, AWindowLeavesTheBlocksWithVisibleKeys) {
  constexpr int kLength = 700, kRows = 64, kTile = kAttentionBackwardKeys;
  for (const int tokens : {1, 2, 63, 64, 65, 127, 128, 129, 300, 699, 900}) {
    const Window window{tokens};
    const auto sees = [&](int row, int key) { return key <= row && key > row - tokens; };
    // Whether some, or all, of the pairs of rows and keys are visible; keys behind a row do not count.
    const auto any = [&](int row, int rows, int key, int keys) {
      for (int i = row; i < row + rows; ++i)
        for (int j = key; j < key + keys; ++j)
          if (sees(i, j)) return true;
      return false;
    };
    for (const int keys : {64, 128})
      for (int row = 0; row < kLength; ++row) {
        EXPECT_TRUE(any(row, 1, window.bottom(row, keys) * keys, keys));
        for (int block = 0; block <= row / keys; ++block) {
          EXPECT_EQ(block >= window.bottom(row, keys), any(row, 1, block * keys, keys)) << row << " " << block;
          bool whole = true;
          for (int key = block * keys; key < (block + 1) * keys; ++key) whole = whole && (key > row || sees(row, key));
          EXPECT_EQ(block > window.edge(row, keys), whole) << row << " " << block << " window " << tokens;
        }
      }
    for (int tile = 0; tile * kTile < kLength; ++tile)
      for (int block = tile * kTile / kRows; block * kRows < kLength; ++block) {
        const bool visited = any(block * kRows, kRows, tile * kTile, kTile);
        EXPECT_EQ(block < window.row_blocks(tile * kTile, kTile, kRows), visited) << tile << " " << block;
        EXPECT_EQ(tile >= window.first_tile(block, kTile, kRows), visited) << tile << " " << block;
      }
  }
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
            // Tiles with the most keys come first.
            const int64_t work = causal ? std::min(t.end, t.first + rows) - t.begin : t.end - t.begin;
            EXPECT_LE(work, previous);
            previous = work;
          }
        }
        EXPECT_EQ(plan.short_blocks, 2 * (7 + 2 + 1 + 1));
        for (size_t b = 0; b < plan.blocks.size(); ++b) EXPECT_EQ(plan.blocks[b].is_short, b < 2 * (7 + 2 + 1 + 1));
        EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
      }
    }
  }
}

TEST(AttentionPlanTest, LongSequencesOfSimilarLengthsShareAList) {
  // Key tiles: 24, then 14, 12, 10, then 8 and 2.
  const std::vector<int32_t> bounds{0, 3000, 4790, 6300, 7580, 8600, 8800};
  const AttentionPlan plan = backward_plan(bounds);
  // The first list is long enough for two sections, so the next list visits rows in descending order too. Two tiles of
  // the second-last sequence come last.
  EXPECT_EQ(lists(plan),
            (std::vector<std::pair<int32_t, int32_t>>{{0, 0}, {24, 2}, {60, kShort}, {66, kShort}, {68, kShort}}));
  for (size_t i = 25; i < 60; ++i)
    EXPECT_LE(plan.backward[i].end - plan.backward[i].first, plan.backward[i - 1].end - plan.backward[i - 1].first)
        << i;
  EXPECT_EQ(plan.short_blocks, 2 * (8 + 2));
  for (size_t b = 0; b < plan.blocks.size(); ++b) EXPECT_EQ(plan.blocks[b].is_short, b >= 2 * (24 + 14 + 12 + 10)) << b;
  // A rest of up to eight tiles joins the list before it; a rest of nine is a list of its own.
  EXPECT_EQ(lists(backward_plan({0, 2000, 4000, 4600, 4900})), (std::vector<std::pair<int32_t, int32_t>>{{0, 0}}));
  EXPECT_EQ(lists(backward_plan({0, 2000, 4000, 4800, 5000})),
            (std::vector<std::pair<int32_t, int32_t>>{{0, 0}, {32, kShort}, {37, kShort}, {39, kShort}}));
  // Without a mask no rows are shared in time: each sequence is a list.
  EXPECT_EQ(lists(backward_plan(bounds, false)),
            (std::vector<std::pair<int32_t, int32_t>>{{0, 0}, {24, 2}, {38, 3}, {50, 4}, {60, kShort}, {68, kShort}}));
  // A list holds no more tiles than fit the cache together, and a sequence that fills the blocks alone is a list of its
  // own.
  EXPECT_EQ(lists(backward_plan({0, 2000, 4000, 6000, 8000, 10000})),
            (std::vector<std::pair<int32_t, int32_t>>{{0, 0}, {64, 2}}));
  EXPECT_EQ(lists(backward_plan({0, 4096, 8192})), (std::vector<std::pair<int32_t, int32_t>>{{0, 0}, {32, 2}}));
}

TEST(AttentionPlanTest, LastTilesOfShortSequencesComeLast) {
  std::vector<int32_t> bounds{0};
  for (int i = 0; i < 30; ++i) bounds.push_back(bounds.back() + 400 - i);
  const AttentionPlan plan = backward_plan(bounds);
  ASSERT_EQ(plan.backward.size(), 16u * 4 + 14u * 3);  // sequences of 400 to 385 tokens, and of fewer
  const AttentionTile* last = &plan.backward[plan.backward.size() - 20];
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(last[i].list_begin, static_cast<int32_t>(plan.backward.size()) - 20);
    EXPECT_EQ(last[i].list_count, 20);
    EXPECT_GE(last[i].sequence, 10) << "the tile's sequence is not one of the shortest";
    EXPECT_LE(last[i].end - last[i].first, kAttentionBackwardKeys) << "the tile is not the last one of its sequence";
    EXPECT_LE(last[i].end - last[i].first, last[std::max(i - 1, 0)].end - last[std::max(i - 1, 0)].first);
  }
  // With fewer sequences two tiles of each come last, but none of a sequence with two tiles.
  EXPECT_EQ(lists(backward_plan({0, 1000, 1400, 1600})),
            (std::vector<std::pair<int32_t, int32_t>>{{0, kShort}, {6, kShort}, {8, kShort}, {10, kShort}}));
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

TEST(AttentionPlanTest, EmptySequencesAreNoWork) {
  const std::vector<int32_t> bounds{0, 0, 100, 100, 612, 612};
  const AttentionPlan plan = plan_attention(bounds.data(), 5, 64, true);
  ASSERT_EQ(plan.sequences.size(), 2u);
  for (const AttentionTile& t : plan.sequences) EXPECT_GT(t.end, t.first);
  EXPECT_EQ(plan.backward.size(), 1u + 4u);
  EXPECT_EQ(plan.blocks.size(), 2u * (1u + 4u));
}

/// Bounds of sequences with 1 to 5,000 tokens; short and long sequences are equally frequent.
std::vector<int32_t> random_bounds(std::mt19937& generator) {
  std::vector<int32_t> bounds{0};
  const auto count = std::uniform_int_distribution<int>(1, 40)(generator);
  const double longest = std::uniform_real_distribution<double>(4, 8.5)(generator);
  for (int i = 0; i < count; ++i)
    bounds.push_back(bounds.back() +
                     static_cast<int32_t>(std::exp(std::uniform_real_distribution<double>(0, longest)(generator))));
  return bounds;
}

/// A tile that adds in key order, or that stores dQ, waits for the earlier tiles of its sequence. These must have been
/// handed out before it; otherwise the kernel deadlocks.
TEST(AttentionPlanTest, NoTileWaitsForOneHandedOutLater) {
  std::mt19937 generator(5);
  for (int pack = 0; pack < 300; ++pack) {
    const std::vector<int32_t> bounds = random_bounds(generator);
    const auto count = static_cast<int64_t>(bounds.size()) - 1;
    const bool causal = pack % 4 != 0;
    const AttentionPlan plan = plan_attention(bounds.data(), count, 128, causal);
    const int heads = std::uniform_int_distribution<int>(1, 12)(generator);
    // The multiprocessor counts of several GPUs, the grid of a small batch, and 1.
    const int processors = std::vector<int>{1, 7, 78, 114, 132, 144}[generator() % 6];
    const SectionQueue queue{plan.backward.data(), nullptr, static_cast<int>(plan.backward.size()), heads, processors};
    SCOPED_TRACE(::testing::Message() << "pack " << pack << ", heads " << heads << ", multiprocessors " << processors
                                      << ", causal " << causal);
    const bool staggered = causal && pack % 3 != 0;
    SCOPED_TRACE(staggered ? "staggered" : "not staggered");
    std::vector<std::vector<int32_t>> next(
        static_cast<size_t>(count), std::vector<int32_t>(static_cast<size_t>(heads)));  // tile of a sequence and head
    for (int item = 0; item < queue.items(); ++item) {
      int tile = -1, head = -1;
      const bool down = staggered ? queue.decode<true>(item, tile, head) : queue.decode(item, tile, head);
      ASSERT_TRUE(tile >= 0 && tile < queue.tile_count && head >= 0 && head < heads)
          << "item " << item << ": tile " << tile << ", head " << head;
      const AttentionTile& t = plan.backward[static_cast<size_t>(tile)];
      const auto sequence = static_cast<size_t>(t.sequence);
      const int32_t drawn = next[sequence][static_cast<size_t>(head)]++,
                    last = (bounds[sequence + 1] - bounds[sequence] - 1) / kAttentionBackwardKeys;
      ASSERT_EQ(t.first, bounds[sequence] + kAttentionBackwardKeys * (staggered && !down ? last - drawn : drawn))
          << "item " << item << ": tile " << tile << ", head " << head;
      // The tile that stores dQ visits the rows last only if all tiles visit them in the same direction.
      const auto block = static_cast<size_t>((t.padded + t.first - t.begin) / 64);
      const bool finishes = plan.blocks[block].is_short != 0;
      ASSERT_EQ(plan.blocks[block + 1].is_short != 0, finishes) << "tile " << tile;
      ASSERT_EQ(t.list == AttentionTile::kShortSequences, finishes) << "tile " << tile;
      ASSERT_TRUE(down || !finishes) << "item " << item;
    }
    int64_t short_blocks = 0;
    for (size_t s = 0; s < static_cast<size_t>(count); ++s)
      for (const int32_t n : next[s])
        ASSERT_EQ(n, (bounds[s + 1] - bounds[s] + kAttentionBackwardKeys - 1) / kAttentionBackwardKeys)
            << "sequence " << s;
    for (const AttentionBlock& b : plan.blocks) short_blocks += b.is_short != 0;
    ASSERT_EQ(plan.short_blocks, short_blocks);
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::attention_plan_tests
