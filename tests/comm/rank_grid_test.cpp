// The groups of RankGrid: each is a partition of the ranks, and together they cover the work once.
#include "trireme/comm/rank_grid.h"

#include "trireme/base/error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace trireme {
namespace {

std::vector<RankGrid> all_ranks(const GridSizes& sizes) {
  std::vector<RankGrid> grids;
  for (int rank = 0; rank < sizes.world; ++rank) grids.emplace_back(rank, sizes);
  return grids;
}

/// The ranks of each group, which have the numbers 0, 1, … in it, in ascending order.
std::vector<std::vector<int>> groups(const std::vector<RankGrid>& grids, GridAxis RankGrid::* axis) {
  std::map<int, std::vector<int>> members;
  for (const RankGrid& grid : grids) {
    std::vector<int>& group = members[(grid.*axis).group];
    EXPECT_EQ((grid.*axis).rank, static_cast<int>(group.size()));
    group.push_back(grid.world.rank);
  }
  std::vector<std::vector<int>> all;
  for (const auto& [number, group] : members) {
    for (const int rank : group)
      EXPECT_EQ((grids[static_cast<size_t>(rank)].*axis).size, static_cast<int>(group.size()));
    all.push_back(group);
  }
  std::sort(all.begin(), all.end());
  return all;
}

using Groups = std::vector<std::vector<int>>;

TEST(RankGrid, OneRankIsAllGroups) {
  const RankGrid grid;
  for (const GridAxis& axis :
       {grid.world, grid.data, grid.context, grid.shard, grid.replica, grid.host, grid.host_slice}) {
    EXPECT_EQ(axis.rank, 0);
    EXPECT_EQ(axis.size, 1);
    EXPECT_EQ(axis.group, 0);
  }
}

TEST(RankGrid, EightRanksInShardGroupsOfFour) {
  const auto grids = all_ranks({.world = 8, .shard = 4, .ranks_per_host = {4, 4}});
  EXPECT_EQ(groups(grids, &RankGrid::shard), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(groups(grids, &RankGrid::replica), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(groups(grids, &RankGrid::context), (Groups{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT_EQ(groups(grids, &RankGrid::data), (Groups{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(groups(grids, &RankGrid::host), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(groups(grids, &RankGrid::host_slice).size(), 8u);
}

TEST(RankGrid, RanksThatShareRowsHoldDifferentSlices) {
  const auto grids = all_ranks({.world = 8, .shard = 4, .context = 2, .ranks_per_host = {8}});
  EXPECT_EQ(groups(grids, &RankGrid::context), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(groups(grids, &RankGrid::data), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(groups(grids, &RankGrid::shard), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(groups(grids, &RankGrid::host_slice), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(grids[5].data.rank, 2);
  EXPECT_EQ(grids[5].data.size, 4);
  EXPECT_EQ(grids[5].context.rank, 1);
}

TEST(RankGrid, UnevenHostsAndEverySize) {
  for (const std::vector<int>& hosts : std::vector<std::vector<int>>{{}, {12}, {6, 6}, {5, 7}, {1, 10, 1}, {4, 2, 6}})
    for (const int shard : {1, 2, 3, 4, 6, 12})
      for (const int context : {1, 2, 3, 4, 6, 12}) {
        if (shard % context != 0 && context % shard != 0) continue;
        const auto grids = all_ranks({.world = 12, .shard = shard, .context = context, .ranks_per_host = hosts});
        for (const auto axis : {&RankGrid::world, &RankGrid::data, &RankGrid::context, &RankGrid::shard,
                                &RankGrid::replica, &RankGrid::host, &RankGrid::host_slice})
          (void)groups(grids, axis);
        EXPECT_EQ(groups(grids, &RankGrid::host).size(), std::max<size_t>(1, hosts.size()));
        std::set<std::pair<int, int>> held, tokens;
        for (const RankGrid& grid : grids) {
          held.insert({grid.shard.rank, grid.replica.rank});
          tokens.insert({grid.data.rank, grid.context.rank});
          EXPECT_EQ(grid.world.size, grid.shard.size * grid.replica.size);
          EXPECT_EQ(grid.world.size, grid.data.size * grid.context.size);
          // Ranks of a slice group are on one host and hold the same slice.
          for (const RankGrid& other : grids)
            EXPECT_EQ(grid.host_slice.group == other.host_slice.group,
                      grid.host.group == other.host.group && grid.shard.rank == other.shard.rank);
        }
        EXPECT_EQ(held.size(), 12u);
        EXPECT_EQ(tokens.size(), 12u);
      }
}

TEST(RankGrid, SlicesOfDividedAndWholeUnits) {
  const RankGrid grid = RankGrid(6, {.world = 8}).with_shard_size(4);
  const GridSlice part = grid.slice_of_unit(/*divided=*/true), whole = grid.slice_of_unit(/*divided=*/false);
  EXPECT_EQ(part.index, 2);
  EXPECT_EQ(part.count, 4);
  EXPECT_EQ(part.copy, 1);
  EXPECT_EQ(part.copies, 2);
  EXPECT_EQ(whole.index, 0);
  EXPECT_EQ(whole.count, 1);
  EXPECT_EQ(whole.copy, 6);
  EXPECT_EQ(whole.copies, 8);
}

TEST(RankGrid, RefusesSizesThatDoNotDivide) {
  EXPECT_THROW(RankGrid(0, {.world = 8, .shard = 3}), InternalError);
  EXPECT_THROW(RankGrid(0, {.world = 8, .shard = 0}), InternalError);
  EXPECT_THROW(RankGrid(0, {.world = 8, .context = 3}), InternalError);
  EXPECT_THROW(RankGrid(0, {.world = 12, .shard = 4, .context = 6}), InternalError);
  EXPECT_THROW(RankGrid(8, {.world = 8}), InternalError);
  EXPECT_THROW(RankGrid(0, {.world = 8, .ranks_per_host = {4, 3}}), InternalError);
  EXPECT_NO_THROW(RankGrid(0, {.world = 8, .shard = 1, .context = 4}));
}

}  // namespace
}  // namespace trireme
