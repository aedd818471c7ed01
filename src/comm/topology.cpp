#include "trireme/comm/topology.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace trireme {

bool Topology::renumbered() const { return !std::is_sorted(launcher_rank.begin(), launcher_rank.end()); }

int Topology::largest_group() const {
  return std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), 0, [](int a, int b) { return std::gcd(a, b); });
}

int Topology::rank_of(int launcher) const {
  const auto found = std::find(launcher_rank.begin(), launcher_rank.end(), launcher);
  TRIREME_CHECK(found != launcher_rank.end(), "the launcher started no rank ", launcher);
  return static_cast<int>(found - launcher_rank.begin());
}

Topology make_topology(const std::vector<std::string>& identities) {
  std::map<std::string, size_t> index;
  std::vector<std::vector<int>> members;
  for (size_t i = 0; i < identities.size(); ++i) {
    const auto [place, first] = index.emplace(identities[i], members.size());
    if (first) members.emplace_back();
    members[place->second].push_back(static_cast<int>(i));
  }
  Topology topology;
  for (const std::vector<int>& ranks : members) {
    topology.launcher_rank.insert(topology.launcher_rank.end(), ranks.begin(), ranks.end());
    topology.ranks_per_host.push_back(static_cast<int>(ranks.size()));
  }
  return topology;
}

std::string describe_topology(const Topology& topology) {
  const auto& counts = topology.ranks_per_host;
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  std::string text = fmt::format("{} with ", counted(topology.hosts(), "host"));
  const int group = topology.largest_group();
  if (*least == *most) {
    text += fmt::format("{}{}", counted(*most, "rank"), topology.hosts() > 1 ? " each" : "");
  } else {
    text += fmt::format("{} to {} ranks: ", *least, *most);
    text += group == 1 ? "no number of ranks above 1 divides all of them, so no shard group fits within hosts"
                       : fmt::format("shard groups of at most {} ranks lie within hosts", group);
  }
  if (!topology.renumbered()) return text;
  std::vector<std::string> pairs;
  for (size_t rank = 0; rank < topology.launcher_rank.size() && pairs.size() < 4; ++rank)
    if (topology.launcher_rank[rank] != static_cast<int>(rank))
      pairs.push_back(fmt::format("the launcher's {} is rank {}", topology.launcher_rank[rank], rank));
  return fmt::format("{}; ranks are numbered host by host: {}{}", text, join(pairs, ", "),
                     pairs.size() == 4 ? ", …" : "");
}

}  // namespace trireme
