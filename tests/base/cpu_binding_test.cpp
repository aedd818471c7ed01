#include "trireme/base/cpu_binding.h"

#include "base_testing.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace trireme {

namespace {

/// Two sockets of two nodes; four cores a node, two hyperthreads each: CPU c and c + 16 are one core.
std::vector<LogicalCpu> two_sockets() {
  std::vector<LogicalCpu> cpus;
  for (int id = 0; id < 32; ++id) cpus.push_back({id, id % 16, id % 16 / 8, id % 16 / 4});
  return cpus;
}

using Lists = std::vector<std::vector<int>>;

Lists assigned(const std::string& rule, const std::vector<int>& nodes) {
  return assign_cpus(parse_cpu_binding(rule), two_sockets(), nodes);
}

}  // namespace

TEST(CpuBinding, ModesDivideTheCoresOfANode) {
  EXPECT_EQ(assigned("mode=all", {0, 2}), (Lists{{0, 1, 2, 3, 16, 17, 18, 19}, {8, 9, 10, 11, 24, 25, 26, 27}}));
  EXPECT_EQ(assigned("mode=single", {1, 1}), (Lists{{4, 20}, {4, 20}}));
  EXPECT_EQ(assigned("mode=single_unique,cores=single_logical", {1, 1}), (Lists{{4}, {5}}));
  EXPECT_EQ(assigned("mode=unique_contiguous,cores=single_logical", {0, 0}), (Lists{{0, 1}, {2, 3}}));
  EXPECT_EQ(assigned("mode=unique_interleaved,cores=single_logical", {0, 0}), (Lists{{0, 2}, {1, 3}}));
  EXPECT_EQ(assigned("mode=unique_contiguous,max_cores=1", {0, 0}), (Lists{{0, 16}, {2, 18}}));
  EXPECT_EQ(assigned("mode=unique_contiguous,scope=socket,cores=single_logical,max_cores=null", {1, 0}),
            (Lists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
}

TEST(CpuBinding, BalancedRanksHaveEqualShares) {
  EXPECT_EQ(assigned("mode=unique_contiguous,cores=single_logical,balanced=true", {0, 0, 3}),
            (Lists{{0, 1}, {2, 3}, {12, 13}}));
  EXPECT_EQ(assigned("mode=unique_contiguous,cores=single_logical,balanced=false", {0, 0, 3}),
            (Lists{{0, 1}, {2, 3}, {12, 13, 14, 15}}));
}

TEST(CpuBinding, RanksWithoutAKnownNodeAreSpread) {
  EXPECT_EQ(assigned("mode=single,cores=single_logical", {-1, -1, -1, -1}), (Lists{{0}, {4}, {8}, {12}}));
  EXPECT_EQ(assigned("mode=single,cores=single_logical", {-1, -1}), (Lists{{0}, {8}}));
}

TEST(CpuBinding, TooFewCoresBindNothing) {
  EXPECT_EQ(assigned("mode=unique_contiguous,min_cores=3", {0, 0}), (Lists{{}, {}}));
  EXPECT_EQ(assigned("mode=single_unique", {0, 0, 0, 0, 0}), (Lists{{}, {}, {}, {}, {}}));
}

TEST(CpuBinding, RulesAreReadStrictly) {
  const std::string text = "mode=all,scope=socket,cores=single_logical,balanced=false,min_cores=2,max_cores=null";
  EXPECT_EQ(cpu_binding_text(parse_cpu_binding(text)), text);
  for (const char* bad : {"mode=unique", "scope=core", "cores=4", "balanced=yes", "min_cores=0", "max_cores=x",
                          "min_cores=9,max_cores=8", "nodes=1", ""})
    EXPECT_THROW(parse_cpu_binding(bad), ConfigError) << bad;
}

TEST(CpuBinding, ReadsTheHost) {
  const TemporaryDirectory directory;
  const std::filesystem::path& root = directory.root();
  for (int id = 0; id < 4; ++id) {
    const auto cpu = root / "devices/system/cpu" / ("cpu" + std::to_string(id));
    std::filesystem::create_directories(cpu / "topology");
    std::filesystem::create_directories(cpu / ("node" + std::to_string(id / 2)));
    std::ofstream(cpu / "topology/physical_package_id") << id / 2 << '\n';
    std::ofstream(cpu / "topology/core_id") << id % 2 << '\n';
  }
  for (const auto& [address, node] : {std::pair("0000:81:00.0", 1), {"0000:18:00.0", 0}}) {
    std::filesystem::create_directories(root / "driver/nvidia/gpus" / address);
    std::filesystem::create_directories(root / "bus/pci/devices" / address);
    std::ofstream(root / "bus/pci/devices" / address / "numa_node") << node << '\n';
  }
  const auto cpus = host_cpus(root, {0, 1, 3});
  ASSERT_EQ(cpus.size(), 3u);
  EXPECT_EQ(cpus[2].id, 3);
  EXPECT_EQ(cpus[2].node, 1);
  EXPECT_NE(cpus[1].core, cpus[2].core) << "core 1 of each socket is another core";
  EXPECT_EQ(gpu_nodes(root, root), (std::vector<int>{0, 1}));
  EXPECT_TRUE(gpu_nodes(root / "none", root).empty());
}

TEST(CpuBinding, BindsTheProcess) {
  unsetenv("TRIREME_NUMA_MAPPING");
  EXPECT_FALSE(bind_cpus(0, 1));
  // In a child: the binding stays with a process.
  const pid_t child = fork();
  if (child == 0) {
    setenv("TRIREME_NUMA_MAPPING", "mode=single,cores=single_logical", 1);
    const auto said = bind_cpus(0, 1);
    cpu_set_t set;
    _exit(said && said->find("runs on CPUs") != std::string::npos && sched_getaffinity(0, sizeof set, &set) == 0 &&
                  CPU_COUNT(&set) == 1
              ? 0
              : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace trireme
