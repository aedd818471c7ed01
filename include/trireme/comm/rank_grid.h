#pragma once
// Where a rank stands among the ranks of its job: which rows it reads, which slice of a unit it holds.
//
// The ranks are numbered host by host (topology.h), and every group below is made of them by that number:
//
//   data      ranks that read different rows. Rank `data.rank` of `data.size` reads every data.size-th row.
//   context   `context.size` neighbouring ranks that share their rows. No run divides rows yet: the size is 1.
//   shard     `shard.size` neighbouring ranks that together hold one copy of the units, a slice each. Ranks that share
//             rows hold different slices: the context is part of it.
//   replica   the ranks that hold the same slice, one of each shard group.
//   host      the ranks of one machine. Hosts may have different numbers of ranks.
//   host_slice  the ranks of one host that hold the same slice.
//
// world = shard x replica = context x data. Who needs the size of a group or a rank's number in it asks the grid, and
// makes the group with Communicator::split(group). Exceptions, which need the launcher's numbers and not a division of
// work: launch.h and what joins the ranks, the watchdog, the CPU cores and threads of a host's ranks, and the lines
// that say how many ranks there are. The rules of the configuration (config/rules.h) check that a batch and a shard
// size divide over the ranks before a grid can be made.

#include <vector>

namespace trireme {

/// A rank's place in one kind of group.
struct GridAxis {
  int rank = 0, size = 1;  // in the group
  int group = 0;           // the number of the group, the same for its ranks only
};

/// Which part of a unit's state a rank holds.
struct GridSlice {
  int index = 0, count = 1;  // the unit is divided into `count` slices; this rank has slice `index`
  int copy = 0, copies = 1;  // so many ranks have this slice; this one is number `copy` of them
};

struct GridSizes {
  int world = 1;    // ranks
  int shard = 1;    // of a shard group; divides world
  int context = 1;  // of a context group; divides world, and one of shard and context divides the other
  /// Hosts in rank order; empty: all ranks are on one host.
  std::vector<int> ranks_per_host{};
};

class RankGrid {
 public:
  /// A single rank.
  RankGrid() : RankGrid(0, {}) {}
  /// InternalError for sizes that do not divide each other, and for a rank that is not there.
  RankGrid(int rank, const GridSizes& sizes);

  /// The grid of the same ranks with shard groups of another size, which the plan chooses after the rows are known.
  RankGrid with_shard_size(int size) const;
  /// The slice of a unit that this rank holds; `divided`: the unit is divided over the shard group.
  GridSlice slice_of_unit(bool divided) const;

  GridAxis world, data, context, shard, replica, host, host_slice;

 private:
  GridSizes sizes_;
};

}  // namespace trireme
