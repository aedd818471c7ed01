#pragma once
// The CPUs on which the ranks of a host run: the launcher's numa_mapping. A rank runs on CPUs of its GPU's NUMA node
// (or socket); where no GPU has a known node, ranks are distributed over the nodes by local rank.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct CpuBinding {
  /// all: every CPU of the node; single: its first core; single_unique: one core for each rank; unique_contiguous and
  /// unique_interleaved: the node's cores divided among its ranks, in blocks or in turn.
  std::string mode = "unique_contiguous";
  std::string scope = "node";         // node | socket
  std::string cores = "all_logical";  // all_logical | single_logical: hyperthreads of a core, or only the first
  bool balanced = true;               // unique_*: every rank has as many cores as the rank with the fewest
  int min_cores = 1;                  // unique_*: with fewer cores no rank is bound
  std::optional<int> max_cores = 8;   // unique_*
};

/// "mode=unique_contiguous,scope=node,…", as in TRIREME_NUMA_MAPPING. ConfigError names what is wrong.
CpuBinding parse_cpu_binding(const std::string& text);
std::string cpu_binding_text(const CpuBinding& binding);

struct LogicalCpu {
  int id = 0, core = 0, socket = 0, node = 0;  // core: unique on the host
};
/// The host's CPUs as /sys lists them (`root`/devices/system), ordered by id; only those in `allowed` unless it is
/// empty.
std::vector<LogicalCpu> host_cpus(const std::filesystem::path& root, const std::vector<int>& allowed);

/// The NUMA nodes of the host's NVIDIA GPUs in the order of their PCI addresses; -1: unknown.
std::vector<int> gpu_nodes(const std::filesystem::path& proc, const std::filesystem::path& sys);

/// The ids of the CPUs of every local rank; empty lists if a rank would get fewer than min_cores. `nodes`: the NUMA
/// node of each local rank, -1 where it is not known.
std::vector<std::vector<int>> assign_cpus(const CpuBinding& binding, const std::vector<LogicalCpu>& cpus,
                                          std::vector<int> nodes);

/// Binds this process as TRIREME_NUMA_MAPPING says. Returns a line for the log, or nullopt where the variable is not
/// set. Running threads are not moved.
std::optional<std::string> bind_cpus(int local_rank, int local_world_size);

}  // namespace trireme
