#include "trireme/comm/launch.h"

#include "store_world.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace trireme {

namespace {

using Lookup = std::function<const char*(const char*)>;

std::optional<std::string> variable(const Lookup& get, const char* name) {
  const char* value = get(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

template <class Integer = int>
std::optional<Integer> integer(const Lookup& get, const char* name) {
  const auto text = variable(get, name);
  if (!text) return std::nullopt;
  const auto value = parse_whole<Integer>(*text);
  if (!value || *value < 0)
    throw ConfigError(fmt::format("environment variable {}='{}' is not a non-negative integer", name, *text));
  return value;
}

int required(const Lookup& get, const char* name, const char* because) {
  const auto value = integer(get, name);
  if (!value) throw ConfigError(fmt::format("environment variable {} is missing although {} is set", name, because));
  return *value;
}

/// Tasks of this step on this node. Slurm writes tasks per node as "2(x3),1": 2 on the first three nodes, 1 on the
/// fourth.
std::optional<int> slurm_tasks_here(const Lookup& get) {
  const auto text = variable(get, "SLURM_STEP_TASKS_PER_NODE");
  if (!text) return std::nullopt;
  const int node = integer(get, "SLURM_NODEID").value_or(0);
  const char *at = text->data(), *const end = at + text->size();
  for (int first = 0; at < end;) {
    int tasks = 0, nodes = 1;
    auto parsed = std::from_chars(at, end, tasks);
    if (parsed.ec == std::errc() && std::string_view(parsed.ptr, end).starts_with("(x")) {
      parsed = std::from_chars(parsed.ptr + 2, end, nodes);
      if (parsed.ptr < end) ++parsed.ptr;
    }
    if (parsed.ec != std::errc())
      throw ConfigError(
          fmt::format("environment variable SLURM_STEP_TASKS_PER_NODE='{}' is not a list like '2(x3),1'", *text));
    first += nodes;
    if (node < first) return tasks;
    at = parsed.ptr + 1;
  }
  return std::nullopt;
}

/// The variables that a launch was read from, for messages.
struct Names {
  const char *rank, *size, *local_rank, *local_size;
};

void check_rank(const Launch& launch, const Names& names) {
  const auto contradict = [](const char* rank_name, int rank, const char* size_name, int size) {
    if (size < 1 || rank >= size)
      throw ConfigError(fmt::format("{}={} and {}={} contradict each other: ranks count from 0 to size - 1", rank_name,
                                    rank, size_name, size));
  };
  contradict(names.rank, launch.rank, names.size, launch.world_size);
  if (launch.local_world_size != kNotTold)
    contradict(names.local_rank, launch.local_rank, names.local_size, launch.local_world_size);
}

/// Compares RANK and WORLD_SIZE with the launcher's own variables. If they contradict, several processes could take the
/// same rank and overwrite each other's output. A larger WORLD_SIZE is allowed: a launcher inside another one (torchrun
/// in an srun step) starts more ranks, never fewer.
void check_against_launcher(const Lookup& get, const Launch& launch) {
  struct {
    const char *rank, *size;
  } constexpr kLaunchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                              {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  for (const auto& names : kLaunchers) {
    const auto rank = integer(get, names.rank), size = integer(get, names.size);
    if (!rank || !size) continue;
    if (launch.world_size < *size)
      throw ConfigError(fmt::format("WORLD_SIZE={} contradicts {}={}: unset RANK and WORLD_SIZE to follow the launcher",
                                    launch.world_size, names.size, *size));
    if (launch.world_size == *size && launch.rank != *rank)
      throw ConfigError(fmt::format("RANK={} contradicts {}={}: unset RANK and WORLD_SIZE to follow the launcher",
                                    launch.rank, names.rank, *rank));
    return;
  }
}

Launch from_explicit(const Lookup& get) {
  Launch launch;
  launch.kind = Launch::Kind::kEnvironment;
  launch.rank = required(get, "RANK", "WORLD_SIZE");
  launch.world_size = required(get, "WORLD_SIZE", "RANK");
  const auto local_rank = integer(get, "LOCAL_RANK");
  // Kubeflow's PyTorchJob: RANK is the number of the pod. With several processes in each, which torchrun starts and
  // numbers, WORLD_SIZE is the number of processes.
  if (const auto processes = variable(get, "PET_NPROC_PER_NODE"); !local_rank && processes && launch.world_size > 1) {
    int count = 1;  // "auto" and "gpu" count as 1 in WORLD_SIZE
    (void)std::from_chars(processes->data(), processes->data() + processes->size(), count);
    if (count > 1)
      throw ConfigError(fmt::format(
          "PET_NPROC_PER_NODE={} without LOCAL_RANK: WORLD_SIZE={} counts processes and RANK={} counts pods; let the "
          "pod's command be torchrun --no-python PROGRAM, which starts {} processes",
          *processes, launch.world_size, launch.rank, *processes));
  }
  const bool alone = launch.world_size == 1;
  launch.local_rank = local_rank.value_or(alone ? 0 : kNotTold);
  launch.local_world_size = integer(get, "LOCAL_WORLD_SIZE").value_or(alone ? launch.local_rank + 1 : kNotTold);
  check_rank(launch, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  check_against_launcher(get, launch);
  if (launch.world_size == 1) return launch;
  const auto address = variable(get, "MASTER_ADDR");
  const auto port = integer(get, "MASTER_PORT");
  if (!address || !port)
    throw ConfigError(fmt::format("{} is missing: with WORLD_SIZE={} every rank must be told where rank 0 listens",
                                  address ? "MASTER_PORT" : "MASTER_ADDR", launch.world_size));
  if (*port < 1 || *port > 65535) throw ConfigError(fmt::format("MASTER_PORT={} is not a port", *port));
  launch.master_address = *address;
  launch.master_port = *port;
  return launch;
}

Launch from_mpi(const Lookup& get) {
  // Rank and size from the launcher's environment; World::join() replaces them by MPI_Init's numbers.
  Launch launch;
  launch.kind = Launch::Kind::kMpi;
  const auto first = [&](std::initializer_list<const char*> names) -> std::optional<int> {
    for (const char* name : names)
      if (const auto value = integer(get, name)) return value;
    return std::nullopt;
  };
  launch.rank = first({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}).value_or(0);
  launch.world_size = first({"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}).value_or(launch.rank + 1);
  launch.local_rank = first({"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}).value_or(launch.rank);
  launch.local_world_size =
      first({"OMPI_COMM_WORLD_LOCAL_SIZE"}).value_or(slurm_tasks_here(get).value_or(launch.local_rank + 1));
  check_rank(launch, {"the launcher's rank", "its size", "its local rank", "its local size"});
  return launch;
}

Launch from_slurm(const Lookup& get) {
  Launch launch;
  launch.rank = required(get, "SLURM_PROCID", "SLURM_STEP_ID");
  const auto step_size = integer(get, "SLURM_STEP_NUM_TASKS");
  launch.world_size = step_size ? *step_size : required(get, "SLURM_NTASKS", "SLURM_PROCID");
  launch.local_rank = integer(get, "SLURM_LOCALID").value_or(0);
  launch.local_world_size = slurm_tasks_here(get).value_or(launch.local_rank + 1);
  check_rank(launch, {"SLURM_PROCID", step_size ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", "SLURM_LOCALID",
                      "the ranks of this node in SLURM_STEP_TASKS_PER_NODE"});
  if (launch.world_size == 1) return launch;
  launch.kind = Launch::Kind::kSlurm;
  if (const auto address = variable(get, "MASTER_ADDR")) {
    launch.master_address = *address;
  } else {
    const auto nodes = variable(get, "SLURM_STEP_NODELIST");
    const auto job_nodes = nodes ? nodes : variable(get, "SLURM_JOB_NODELIST");
    if (!job_nodes) throw ConfigError("neither MASTER_ADDR nor SLURM_STEP_NODELIST is set: rank 0's host is unknown");
    launch.master_address = first_slurm_host(*job_nodes);
  }
  // Job steps that share a host need different ports: the port is derived from job and step. Linux gives outgoing
  // connections ports from 32768 on (net.ipv4.ip_local_port_range).
  // Numbers of a federation's jobs and of Slurm's own steps have 32 bits.
  const int64_t job = integer<int64_t>(get, "SLURM_JOB_ID").value_or(0),
                step = integer<int64_t>(get, "SLURM_STEP_ID").value_or(0);
  launch.master_port =
      integer(get, "MASTER_PORT").value_or(static_cast<int>(20000 + (job % 12000 * 97 + step) % 12000));
  return launch;
}

}  // namespace

std::string first_slurm_host(const std::string& node_list) {
  // Names may hold several lists ("rack[1-2]node[3-4]"): of each, its first entry.
  std::string host;
  for (size_t at = 0; at < node_list.size() && node_list[at] != ',';) {
    if (node_list[at] != '[') {
      host += node_list[at++];
      continue;
    }
    const size_t stop = node_list.find_first_of("-,]", at), close = node_list.find(']', at);
    if (close == std::string::npos)
      throw ConfigError(fmt::format("Slurm node list '{}' has an open bracket", node_list));
    host += node_list.substr(at + 1, stop - at - 1);
    at = close + 1;
  }
  if (host.empty()) throw ConfigError(fmt::format("Slurm node list '{}' names no host", node_list));
  return host;
}

Launch detect_launch(const Lookup& given) {
  const Lookup get = given ? given : [](const char* name) -> const char* { return std::getenv(name); };
  if (variable(get, "RANK") || variable(get, "WORLD_SIZE")) return from_explicit(get);
  if (variable(get, "PMIX_RANK") || variable(get, "OMPI_COMM_WORLD_RANK")) return from_mpi(get);
  // An sbatch script's own shell has SLURM_JOB_ID, SLURM_NTASKS and SLURM_PROCID but is no task of a step.
  if (variable(get, "SLURM_STEP_ID")) return from_slurm(get);
  for (const char* name : {"MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE"})
    if (const auto size = integer(get, name); size && *size > 1)
      throw ConfigError(
          fmt::format("{}={} without RANK: this launcher is not known, and each of its {} copies would "
                      "train alone; set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each, or use "
                      "OpenMPI's mpirun",
                      name, *size, *size));
  // MPICH's mpirun: MPI_Init of this build would make every copy rank 0 of 1, each writing to the same output.
  if (const auto size = integer(get, "PMI_SIZE"); size && *size > 1)
    throw ConfigError(fmt::format(
        "PMI_SIZE={} without PMIX_RANK: the launcher speaks PMI, as MPICH's mpirun does; use OpenMPI's mpirun or "
        "srun --mpi=pmix",
        *size));
  return Launch{};
}

void complete_launch(Launch& launch, const std::vector<std::string>& identities) {
  const auto own = identities.begin() + launch.rank;
  const auto here = [&](auto end) { return static_cast<int>(std::count(identities.begin(), end, *own)); };
  if (launch.local_rank == kNotTold) launch.local_rank = here(own);
  if (launch.local_world_size == kNotTold)
    launch.local_world_size = std::max(here(identities.end()), launch.local_rank + 1);
}

std::string Launch::description() const {
  switch (kind) {
    case Kind::kAlone: return "alone";
    case Kind::kMpi: return fmt::format("MPI (rank {} of {})", rank, world_size);
    case Kind::kSlurm: return fmt::format("srun --mpi=none (SLURM_PROCID {} of {})", rank, world_size);
    case Kind::kEnvironment: return fmt::format("environment (RANK {} of {})", rank, world_size);
  }
  return "?";
}

}  // namespace trireme
