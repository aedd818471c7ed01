// A host simulation of the backward kernel's waits: it must finish with any number of resident blocks.

#include "kernels/attention/tile_queue.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace trireme::kernels::testing::attention_order_tests {

namespace {

constexpr int kRows = 64;  // rows of a query block

struct Setting {
  std::vector<int32_t> bounds;
  int kv_heads, group;
  bool causal, deterministic;
  int processors;  // also the number of blocks of the grid if there is enough work
  int window = 0;  // with a causal mask and a fixed order
};

/// The waits of the backward kernel between blocks (kernels/attention/attention_backward_produce.cuh): key tiles in the
/// order in which blocks draw them, each a sequence of steps over blocks of query rows. A step that adds in a fixed
/// order, or that stores dQ, waits for the sums of the tiles before it.
class Simulation {
 public:
  Simulation(const Setting& setting, uint32_t seed)
      : setting_(setting),
        plan_(plan_attention(setting.bounds.data(), static_cast<int64_t>(setting.bounds.size()) - 1, 128,
                             setting.causal)),
        queue_{plan_.backward.data(), counters_, static_cast<int>(plan_.backward.size()), setting.kv_heads,
               setting.processors},
        sums_(plan_.blocks.size() * static_cast<size_t>(setting.kv_heads * setting.group)),
        generator_(seed) {
    // As in the launcher: short sequences store dQ themselves if they are a large enough share.
    finishes_ =
        setting.causal && !setting.deterministic && plan_.short_blocks * 8 >= static_cast<int64_t>(plan_.blocks.size());
  }

  int grid() const { return std::min(setting_.processors, queue_.items()); }
  int items_done() const { return items_done_; }
  int items() const { return queue_.items(); }

  /// Runs with `resident` blocks at a time; each further block starts when one ends. False: deadlock.
  bool run(int resident) {
    std::vector<Block> blocks(static_cast<size_t>(grid()));
    std::vector<size_t> running;
    size_t begun = 0;
    while (true) {
      while (begun < blocks.size() && running.size() < static_cast<size_t>(resident)) running.push_back(begun++);
      if (running.empty()) return true;
      std::shuffle(running.begin(), running.end(), generator_);
      bool moved = false;
      for (const size_t b : running) moved = advance(blocks[b]) || moved;
      if (!moved) return false;
      std::erase_if(running, [&](size_t b) { return blocks[b].ended && blocks[b].items.empty(); });
    }
  }

  /// The number of rounds in which each block makes one step, or waits. Other blocks see sums `delay` rounds later.
  int rounds(int delay) {
    delay_ = delay;
    std::vector<Block> blocks(static_cast<size_t>(grid()));
    for (now_ = 0; items_done_ < items(); ++now_)
      for (Block& block : blocks) {
        if (block.items.empty() && !block.ended) draw(block);
        if (!block.items.empty() && step(block.items.front())) leave_finished(block);
      }
    return now_;
  }

 private:
  struct Item {
    AttentionTile tile;
    int head, first_block, blocks, steps, step = 0;
    bool down, is_short;
  };
  struct Block {
    std::deque<Item> items;  // drawn and not finished, in this order
    bool ended = false;
  };

  Item item(int number) const {
    int tile = 0, head = 0;
    const bool down =
        (staggered() ? queue_.decode<true>(number, tile, head) : queue_.decode(number, tile, head)) && setting_.causal;
    const AttentionTile& t = plan_.backward[static_cast<size_t>(tile)];
    const int first_block = setting_.causal ? (t.first - t.begin) / kRows : 0,
              all = std::max((t.end - t.begin + kRows - 1) / kRows, first_block + (setting_.group == 1 ? 2 : 1)),
              blocks = setting_.window == 0 ? all
                                            : std::min(all, Window{setting_.window}.row_blocks(
                                                                t.first - t.begin, kAttentionBackwardKeys, kRows));
    return {t,
            head,
            first_block,
            blocks,
            (blocks - first_block) * setting_.group,
            0,
            down,
            t.list == AttentionTile::kShortSequences};
  }

  /// Draws an item if possible and then makes at most a few steps; false: it could do neither. The kernel draws an item
  /// a few steps before the end of the previous one; here it draws at the beginning of the previous one, the earliest
  /// possible time, which must not deadlock either.
  bool advance(Block& block) {
    bool moved = false;
    while (!block.ended && block.items.size() < 2) moved = draw(block);
    const int most = std::uniform_int_distribution<int>(1, 6)(generator_);
    for (int i = 0; i < most && !block.items.empty() && step(block.items.front()); ++i) {
      moved = true;
      leave_finished(block);
    }
    return moved;
  }

  bool draw(Block& block) {
    const int number = queue_.next();
    block.ended = number >= queue_.items();
    if (!block.ended) block.items.push_back(item(number));
    return true;
  }

  void leave_finished(Block& block) {
    if (block.items.front().step < block.items.front().steps) return;
    block.items.pop_front();
    ++items_done_;
  }

  bool staggered() const { return setting_.causal && setting_.deterministic; }

  bool step(Item& item) {
    const int turn = item.step / setting_.group, block = item.down ? item.blocks - 1 - turn : item.first_block + turn;
    const bool beyond = block * kRows >= item.tile.end - item.tile.begin;
    const int finishing =
        finishes_ && item.is_short
            ? std::min(item.blocks - item.first_block, kAttentionBackwardKeys / kRows) * setting_.group
            : 0;
    const bool finishes = item.steps - item.step <= finishing;
    const int key_tile = (item.tile.first - item.tile.begin) / kAttentionBackwardKeys,
              first =
                  setting_.window == 0 ? 0 : Window{setting_.window}.first_tile(block, kAttentionBackwardKeys, kRows),
              before = staggered() && !item.down ? block * kRows / kAttentionBackwardKeys - key_tile : key_tile - first,
              rotation = item.is_short ? 0 : key_tile % setting_.group,
              query_head = item.head * setting_.group + (item.step + rotation) % setting_.group;
    Sums& sums = sums_[static_cast<size_t>(query_head) * plan_.blocks.size() +
                       static_cast<size_t>(item.tile.padded / kRows + block)];
    if (!beyond && (setting_.deterministic || finishes)) {
      EXPECT_LE(sums.tiles, before) << "a later tile added its sums before this one";
      if (sums.tiles < before || sums.seen_from > now_) return false;
    }
    if (!beyond && !finishes) {
      ++sums.tiles;
      sums.seen_from = now_ + delay_;
    }
    ++item.step;
    return true;
  }

  Setting setting_;
  AttentionPlan plan_;
  int32_t counters_[2] = {};
  SectionQueue queue_;
  struct Sums {
    int tiles = 0;      // that have added
    int seen_from = 0;  // round from which other blocks see the last of them
  };
  std::vector<Sums> sums_;  // per query head and block of rows
  int now_ = 0, delay_ = 0;
  std::mt19937 generator_;
  bool finishes_;
  int items_done_ = 0;
};

std::vector<int32_t> rows_of(int count, int32_t length) {
  std::vector<int32_t> bounds{0};
  for (int i = 0; i < count; ++i) bounds.push_back(bounds.back() + length);
  return bounds;
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const bool deterministic : {false, true}) {
    all.push_back({rows_of(8, 1024), 32, 1, true, deterministic, 132});
    all.push_back({rows_of(8, 1024), 8, 4, true, deterministic, 132});
    all.push_back({rows_of(1, 8192), 8, 1, true, deterministic, 132});
    all.push_back({rows_of(1, 2048), 9, 1, true, deterministic, 132});
    all.push_back({rows_of(40, 300), 4, 1, true, deterministic, 114});
    all.push_back({rows_of(4, 1000), 12, 1, false, deterministic, 78});
    all.push_back({{0, 3000, 4790, 6300, 7580, 8600, 8800}, 6, 2, true, deterministic, 132});
  }
  for (const int window : {1, 128, 500, 2000}) {
    all.push_back({rows_of(3, 3000), 16, 1, true, true, 132, window});
    all.push_back({{0, 3000, 4790, 6300, 7580, 8600, 8800}, 6, 3, true, true, 132, window});
  }
  std::mt19937 generator(3);
  for (int i = 0; i < 30; ++i) {
    std::vector<int32_t> bounds{0};
    const int count = std::uniform_int_distribution<int>(1, 20)(generator);
    for (int s = 0; s < count; ++s)
      bounds.push_back(bounds.back() +
                       static_cast<int32_t>(std::exp(std::uniform_real_distribution<double>(0, 8)(generator))));
    all.push_back({bounds, std::uniform_int_distribution<int>(1, 12)(generator),
                   std::uniform_int_distribution<int>(1, 2)(generator), i % 4 != 0, i % 2 == 0, 132});
  }
  return all;
}

TEST(AttentionOrderTest, AnyNumberOfResidentBlocksDoesAllWork) {
  uint32_t seed = 0;
  for (const Setting& s : settings()) {
    std::string bounds;
    for (const int32_t b : s.bounds) bounds += " " + std::to_string(b);
    for (const int resident : {1, 2, 37, 68, 104, 124, s.processors - 1, s.processors}) {
      Simulation simulation(s, ++seed);
      EXPECT_TRUE(simulation.run(resident))
          << resident << " of " << simulation.grid() << " blocks resident, " << s.kv_heads << " key heads read by "
          << s.group << " each, causal " << s.causal << ", deterministic " << s.deterministic << ", bounds" << bounds
          << ": deadlock, " << simulation.items_done() << " of " << simulation.items() << " items are done";
      EXPECT_EQ(simulation.items_done(), simulation.items());
    }
  }
}

TEST(AttentionOrderTest, SumsInAFixedOrderTakeNoLonger) {
  for (const auto& [bounds, kv_heads, group] :
       std::vector<std::tuple<std::vector<int32_t>, int, int>>{{rows_of(2, 4096), 32, 1},
                                                               {rows_of(1, 4096), 32, 1},
                                                               {rows_of(1, 8192), 8, 8},
                                                               {rows_of(4, 4096), 8, 4},
                                                               {rows_of(4, 2048), 12, 1},
                                                               {rows_of(32, 2048), 12, 1},
                                                               {{0, 3000, 4790, 6300, 7580, 8192}, 32, 1}}) {
    Setting setting{bounds, kv_heads, group, true, false, 132};
    const int any_order = Simulation(setting, 1).rounds(2);
    setting.deterministic = true;
    const int fixed_order = Simulation(setting, 1).rounds(2);
    EXPECT_LE(fixed_order, any_order + any_order / 16)
        << bounds.size() - 1 << " sequences, " << kv_heads << " key heads read by " << group << " each";
  }
}

}  // namespace

}  // namespace trireme::kernels::testing::attention_order_tests
