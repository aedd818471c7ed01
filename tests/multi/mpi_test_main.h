#pragma once
// The world of a test program that runs under mpirun.

#include "trireme/comm/communicator.h"
#include "trireme/comm/rank_grid.h"

#include <utility>
#include <vector>

namespace trireme {
World& test_world();
/// This rank's place, with shard groups of `shard_size`. Empty `ranks_per_host`: all ranks are on one host.
inline RankGrid test_grid(int shard_size = 1, std::vector<int> ranks_per_host = {}) {
  const Communicator& comm = test_world().communicator();
  return {comm.rank(), {.world = comm.size(), .shard = shard_size, .ranks_per_host = std::move(ranks_per_host)}};
}
}  // namespace trireme
