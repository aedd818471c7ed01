#pragma once
// Private to plan/: what collectives cost on their way between ranks of one host and of several.

#include "trireme/plan/plan.h"

#include <algorithm>
#include <cmath>

namespace trireme {

/// What a collective costs: per byte that a rank receives, and whatever the bytes.
struct Route {
  double byte = 0, ring = 0, tree = 0;
  /// An all-reduce goes around the ring twice, or up a tree and down again: NCCL takes the faster.
  double all_reduce() const { return tree > 0 ? std::min(2 * ring, 2 * tree) : 2 * ring; }
};

/// Of groups of `size` ranks of which `members` share a host; `size` == `members`: inside a host.
///
/// NCCL passes data around rings that enter and leave each host once, one ring for each of the group's ranks on it, so
/// that the hosts' network adapters share the bytes: a rank receives at the rate of `members` adapters, or of the links
/// inside its host where those are slower.
inline Route route(const StepTimes& times, int size, int members) {
  if (size <= members) return {times.gathered_byte, 0, 0};
  const double hosts = static_cast<double>(size) / members, inside = static_cast<double>(members) - 1;
  return {std::max(times.gathered_byte, times.network_byte / members),
          times.collective_start + hosts * inside * times.ring_link_step + (hosts - 1) * times.ring_network_step,
          inside * times.tree_link_step + std::ceil(std::log2(hosts)) * times.tree_network_step};
}

}  // namespace trireme
