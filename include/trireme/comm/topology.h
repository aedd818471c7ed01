#pragma once
// Which ranks share a host, and how they are numbered.
//
// Shard groups, checkpoints and gathers require that neighbouring ranks share a host. Launchers do not promise such an
// order (srun --distribution=cyclic, mpirun --map-by node), so World::join() renumbers the ranks if necessary: host by
// host, in the order of each host's first rank, and within a host in the launcher's order. Rank 0 stays rank 0.

#include <string>
#include <vector>

namespace trireme {

struct Topology {
  std::vector<int> launcher_rank;   // per rank: the number that the launcher gave it
  std::vector<int> ranks_per_host;  // hosts in rank order: the first ranks_per_host[0] ranks are on the first host

  int hosts() const { return static_cast<int>(ranks_per_host.size()); }
  bool renumbered() const;
  /// The largest n such that every n consecutive ranks from a multiple of n are on one host: the greatest common
  /// divisor of ranks_per_host. Shard groups whose size divides it lie within hosts.
  int largest_group() const;
  /// The rank that the launcher calls `launcher`.
  int rank_of(int launcher) const;
};

/// `identities[i]`: host_identity() of the rank to which the launcher gave the number i.
Topology make_topology(const std::vector<std::string>& identities);

/// "2 hosts with 4 ranks each"; names renumbered ranks, and with uneven hosts the consequence for shard groups.
std::string describe_topology(const Topology& topology);

}  // namespace trireme
