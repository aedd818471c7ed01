#pragma once
// The place of a rank in the groups of its job: which rows it reads, which slice of a unit it holds.
//
// The ranks are numbered host by host (topology.h), and the groups are formed by these numbers:
//
//   data      ranks that read different rows. Rank `data.rank` of `data.size` reads every data.size-th row.
//   context   `context.size` neighbouring ranks that share their rows (parallel.context_size).
//   shard     `shard.size` neighbouring ranks that together hold one copy of the units, a slice each. Ranks that share
//             rows hold different slices: the context is part of it.
//   replica   the ranks that hold the same slice, one of each shard group.
//   host      the ranks of one machine. Hosts may have different numbers of ranks.
//   host_slice  the ranks of one host that hold the same slice.
//
// world = shard x replica = context x data. All code reads sizes of groups and a rank's number in them from the grid,
// and makes the groups with Communicator::split(group). Some code needs the launcher's numbers instead: launch.h and
// the code that joins the ranks, the watchdog, the CPU cores and threads of a host's ranks, and log lines with the
// number of ranks. The rules of the configuration (config/rules.h) check that a batch and a shard size divide over the
// ranks before a grid can be made.

#include <vector>

namespace trireme {

/// A rank's place in one kind of group.
struct GridAxis {
  int rank = 0, size = 1;  // in the group
  int group = 0;           // the number of the group
};

/// The part of a unit's state that a rank holds.
struct GridSlice {
  int index = 0, count = 1;  // the unit is divided into `count` slices; this rank has slice `index`
  int copy = 0, copies = 1;  // `copies` ranks hold this slice; this rank is number `copy` of them
};

struct GridSizes {
  int world = 1;    // ranks
  int shard = 1;    // of a shard group; divides world
  int context = 1;  // of a context group; divides world, and divides or is divided by shard
  /// Hosts in rank order; empty: all ranks are on one host.
  std::vector<int> ranks_per_host{};
};

class RankGrid {
 public:
  /// A single rank.
  RankGrid() : RankGrid(0, {}) {}
  /// InternalError for sizes that do not divide each other, and for a rank outside the world.
  RankGrid(int rank, const GridSizes& sizes);

  /// The grid of the same ranks with shard groups of `size`: the plan chooses the size after the rows are known.
  RankGrid with_shard_size(int size) const;
  /// The slice of a unit that this rank holds; `divided`: the unit is divided over the shard group.
  GridSlice slice_of_unit(bool divided) const;

  GridAxis world, data, context, shard, replica, host, host_slice;

 private:
  GridSizes sizes_;
};

}  // namespace trireme
