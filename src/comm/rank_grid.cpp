#include "trireme/comm/rank_grid.h"

#include "trireme/base/error.h"

#include <numeric>

namespace trireme {

namespace {

/// Groups of `size` neighbours.
GridAxis neighbours(int rank, int size) { return {rank % size, size, rank / size}; }
/// One rank of each group of `stride` neighbours.
GridAxis across(int rank, int world, int stride) { return {rank / stride, world / stride, rank % stride}; }

/// How many of the ranks [begin, end) have the number `index` in their shard group.
int with_slice(int begin, int end, int shard, int index) {
  const auto below = [&](int limit) { return limit / shard + (limit % shard > index ? 1 : 0); };
  return below(end) - below(begin);
}

}  // namespace

RankGrid::RankGrid(int rank, const GridSizes& sizes) : sizes_(sizes) {
  const int count = sizes.world;
  TRIREME_CHECK(rank >= 0 && rank < count, "rank ", rank, " of ", count);
  const auto divides = [](int size, int whole) { return size >= 1 && whole % size == 0; };
  TRIREME_CHECK(divides(sizes.shard, count), "shard size ", sizes.shard, " does not divide the number of ranks ",
                count);
  TRIREME_CHECK(divides(sizes.context, count), "context size ", sizes.context, " does not divide the number of ranks ",
                count);
  TRIREME_CHECK(divides(sizes.context, sizes.shard) || divides(sizes.shard, sizes.context), "shard size ", sizes.shard,
                " and context size ", sizes.context, " do not divide each other");
  const std::vector<int>& hosts = sizes.ranks_per_host;
  const int on_hosts = std::accumulate(hosts.begin(), hosts.end(), 0);
  TRIREME_CHECK(hosts.empty() || on_hosts == count, "the hosts have ", on_hosts, " of ", count, " ranks");

  world = {rank, count, 0};
  context = neighbours(rank, sizes.context);
  data = across(rank, count, sizes.context);
  shard = neighbours(rank, sizes.shard);
  replica = across(rank, count, sizes.shard);

  int first = 0;  // of this host's ranks
  host = {rank, count, 0};
  for (const int here : hosts) {
    host = {rank - first, here, host.group};
    if (rank < first + here) break;
    first += here;
    ++host.group;
  }
  host_slice = {with_slice(first, rank, sizes.shard, shard.rank),
                with_slice(first, first + host.size, sizes.shard, shard.rank), host.group * sizes.shard + shard.rank};
}

RankGrid RankGrid::with_shard_size(int size) const {
  GridSizes sizes = sizes_;
  sizes.shard = size;
  return {world.rank, sizes};
}

GridSlice RankGrid::slice_of_unit(bool divided) const {
  if (!divided) return {0, 1, world.rank, world.size};
  return {shard.rank, shard.size, replica.rank, replica.size};
}

}  // namespace trireme
