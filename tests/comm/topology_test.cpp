#include "trireme/comm/topology.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trireme {

namespace {

Topology topology_of(const std::vector<std::string>& hosts) { return make_topology(hosts); }

TEST(Topology, BlocksOfRanksKeepTheirNumbers) {
  const Topology topology = topology_of({"a", "a", "b", "b"});
  EXPECT_FALSE(topology.renumbered());
  EXPECT_EQ(topology.launcher_rank, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(topology.ranks_per_host, (std::vector<int>{2, 2}));
  EXPECT_EQ(topology.largest_group(), 2);
  EXPECT_EQ(describe_topology(topology), "2 hosts with 2 ranks each");
}

TEST(Topology, CyclicRanksAreNumberedHostByHost) {
  const Topology topology = topology_of({"b", "a", "b", "a", "b", "a"});
  EXPECT_TRUE(topology.renumbered());
  // The first host is that of the launcher's rank 0, whatever its name.
  EXPECT_EQ(topology.launcher_rank, (std::vector<int>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(topology.ranks_per_host, (std::vector<int>{3, 3}));
  for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(topology.rank_of(topology.launcher_rank[rank]), rank);
  EXPECT_EQ(describe_topology(topology),
            "2 hosts with 3 ranks each; ranks are numbered host by host: the launcher's 2 is rank 1, the launcher's 4 "
            "is rank 2, the launcher's 1 is rank 3, the launcher's 3 is rank 4, …");
}

TEST(Topology, GroupsOfUnevenHostsDivideEveryHost) {
  EXPECT_EQ(topology_of({"a", "a", "a", "a", "b", "b", "c", "c", "c", "c", "c", "c"}).largest_group(), 2);
  // srun --nodes=3 --ntasks=7
  const Topology uneven = topology_of({"a", "a", "a", "b", "b", "c", "c"});
  EXPECT_EQ(uneven.largest_group(), 1);
  EXPECT_EQ(describe_topology(uneven),
            "3 hosts with 2 to 3 ranks: no number of ranks above 1 divides all of them, so no shard group fits within "
            "hosts");
  EXPECT_EQ(describe_topology(topology_of({"a", "b", "a", "a", "a", "b"})),
            "2 hosts with 2 to 4 ranks: shard groups of at most 2 ranks lie within hosts; ranks are numbered host by "
            "host: the launcher's 2 is rank 1, the launcher's 3 is rank 2, the launcher's 4 is rank 3, the launcher's "
            "1 is rank 4, …");
}

/// Every group of largest_group() consecutive ranks is on one host, for any order and any counts.
TEST(Topology, NoGroupReachesOverTwoHosts) {
  const std::vector<std::string> hosts = {"a", "b", "c", "a", "b", "c", "c", "c",
                                          "a", "b", "a", "b", "c", "c", "c", "c"};
  const Topology topology = topology_of(hosts);
  const int group = topology.largest_group();
  EXPECT_EQ(group, 4);
  for (size_t rank = 0; rank < hosts.size(); ++rank)
    EXPECT_EQ(hosts[topology.launcher_rank[rank]], hosts[topology.launcher_rank[rank / group * group]]) << rank;
}

TEST(Topology, OneRankIsOneHost) {
  const Topology topology = topology_of({"a"});
  EXPECT_EQ(topology.largest_group(), 1);
  EXPECT_EQ(describe_topology(topology), "1 host with 1 rank");
  EXPECT_EQ(describe_topology(topology_of({"a", "a"})), "1 host with 2 ranks");
}

}  // namespace

}  // namespace trireme
