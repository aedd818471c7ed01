#pragma once
// Which CPUs the ranks of a host run on: the launcher's numa_mapping. Every rank takes CPUs of its GPU's NUMA node (or
// socket), or of the node that its local rank falls on where no GPU says one.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct CpuBinding {
  /// all: every CPU of the node; single: its first core; single_unique: a core of its own; unique_contiguous and
  /// unique_interleaved: the node's cores divided among its ranks, in blocks or in turn.
  std::string mode = "unique_contiguous";
  std::string scope = "node";         // node | socket
  std::string cores = "all_logical";  // all_logical | single_logical: hyperthreads of a core, or its first one
  bool balanced = true;               // unique_*: every rank has as many cores as the one with the fewest
  int min_cores = 1;                  // unique_*: with fewer nothing is bound
  std::optional<int> max_cores = 8;   // unique_*
};

/// "mode=unique_contiguous,scope=node,…", as in TRIREME_NUMA_MAPPING. ConfigError names what is wrong.
CpuBinding parse_cpu_binding(const std::string& text);
std::string cpu_binding_text(const CpuBinding& binding);

struct LogicalCpu {
  int id = 0, core = 0, socket = 0, node = 0;  // core: unique on the host
};
/// The host's CPUs as /sys has them (`root`/devices/system), ordered by id; those that `allowed` names, if it names
/// any.
std::vector<LogicalCpu> host_cpus(const std::filesystem::path& root, const std::vector<int>& allowed);

/// The NUMA nodes of the host's NVIDIA GPUs in the order of their PCI addresses; -1: unknown.
std::vector<int> gpu_nodes(const std::filesystem::path& proc, const std::filesystem::path& sys);

/// For every local rank the ids of its CPUs; empty lists where fewer than min_cores are there for each. `nodes`: the
/// NUMA node of each local rank, -1 where it is not known.
std::vector<std::vector<int>> assign_cpus(const CpuBinding& binding, const std::vector<LogicalCpu>& cpus,
                                          std::vector<int> nodes);

/// Binds this process as TRIREME_NUMA_MAPPING says; a line for the log, or nullopt where the variable is not set.
/// Threads that are there already stay where they are.
std::optional<std::string> bind_cpus(int local_rank, int local_world_size);

}  // namespace trireme
