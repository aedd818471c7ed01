#include "trireme/base/cpu_binding.h"

#include "trireme/base/error.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <utility>

namespace trireme {

namespace {

std::optional<int> number_in(const std::filesystem::path& file) {
  std::ifstream stream(file);
  int value = 0;
  if (!(stream >> value)) return std::nullopt;
  return value;
}

/// Names like cpu12: the number.
std::optional<int> suffix(const std::string& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  return parse_whole<int>(std::string_view(name).substr(prefix.size()));
}

/// GPUs of local ranks: CUDA_VISIBLE_DEVICES where it is a list of numbers.
int device_of(int local_rank) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return local_rank;
  const std::vector<std::string> devices = split(visible, ',');
  if (local_rank >= static_cast<int>(devices.size())) return local_rank;
  return parse_whole<int>(devices[static_cast<size_t>(local_rank)]).value_or(local_rank);
}

std::string ranges(const std::vector<int>& ids) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < ids.size();) {
    size_t last = i;
    while (last + 1 < ids.size() && ids[last + 1] == ids[last] + 1) ++last;
    parts.push_back(last == i ? std::to_string(ids[i]) : fmt::format("{}-{}", ids[i], ids[last]));
    i = last + 1;
  }
  return join(parts, ",");
}

}  // namespace

CpuBinding parse_cpu_binding(const std::string& text) {
  CpuBinding binding;
  const auto fail = [&](const std::string& why) { throw ConfigError(fmt::format("numa_mapping '{}': {}", text, why)); };
  const auto word = [&](const std::string& key, const std::string& value, const std::vector<std::string>& words) {
    if (std::find(words.begin(), words.end(), value) == words.end())
      fail(fmt::format("{} is one of {}, not '{}'.{}", key, join(words, ", "), value, did_you_mean(value, words)));
    return value;
  };
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals), value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (key == "mode") {
      binding.mode = word(key, value, {"all", "single", "single_unique", "unique_interleaved", "unique_contiguous"});
    } else if (key == "scope") {
      binding.scope = word(key, value, {"node", "socket"});
    } else if (key == "cores") {
      binding.cores = word(key, value, {"all_logical", "single_logical"});
    } else if (key == "balanced") {
      binding.balanced = word(key, value, {"true", "false"}) == "true";
    } else if (key == "min_cores" || key == "max_cores") {
      const auto count = parse_whole<int>(value);
      if (key == "max_cores" && value == "null") {
        binding.max_cores = std::nullopt;
      } else if (!count || *count < 1) {
        fail(fmt::format("{} is a number from 1 on, not '{}'", key, value));
      } else if (key == "min_cores") {
        binding.min_cores = *count;
      } else {
        binding.max_cores = *count;
      }
    } else {
      fail(fmt::format("there is no '{}'.{}", key,
                       did_you_mean(key, {"mode", "scope", "cores", "balanced", "min_cores", "max_cores"})));
    }
  }
  if (binding.max_cores && *binding.max_cores < binding.min_cores)
    fail(fmt::format("max_cores {} is below min_cores {}", *binding.max_cores, binding.min_cores));
  return binding;
}

std::string cpu_binding_text(const CpuBinding& binding) {
  return fmt::format("mode={},scope={},cores={},balanced={},min_cores={},max_cores={}", binding.mode, binding.scope,
                     binding.cores, binding.balanced, binding.min_cores,
                     binding.max_cores ? std::to_string(*binding.max_cores) : "null");
}

std::vector<LogicalCpu> host_cpus(const std::filesystem::path& root, const std::vector<int>& allowed) {
  std::map<int, LogicalCpu> cpus;
  std::map<std::pair<int, int>, int> cores;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root / "devices/system/cpu", error)) {
    const auto id = suffix(entry.path().filename().string(), "cpu");
    if (!id || (!allowed.empty() && std::find(allowed.begin(), allowed.end(), *id) == allowed.end())) continue;
    LogicalCpu cpu;
    cpu.id = *id;
    cpu.socket = number_in(entry.path() / "topology/physical_package_id").value_or(0);
    cpu.core = number_in(entry.path() / "topology/core_id").value_or(*id);
    for (const auto& link : std::filesystem::directory_iterator(entry.path(), error))
      if (const auto node = suffix(link.path().filename().string(), "node")) cpu.node = *node;
    cpus[*id] = cpu;
  }
  std::vector<LogicalCpu> all;
  for (auto& [id, cpu] : cpus) {
    // core_id counts inside a socket.
    cpu.core = cores.try_emplace({cpu.socket, cpu.core}, static_cast<int>(cores.size())).first->second;
    all.push_back(cpu);
  }
  return all;
}

std::vector<int> gpu_nodes(const std::filesystem::path& proc, const std::filesystem::path& sys) {
  std::set<std::string> addresses;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(proc / "driver/nvidia/gpus", error))
    addresses.insert(entry.path().filename().string());
  std::vector<int> nodes;
  for (const std::string& address : addresses)
    nodes.push_back(number_in(sys / "bus/pci/devices" / address / "numa_node").value_or(-1));
  return nodes;
}

std::vector<std::vector<int>> assign_cpus(const CpuBinding& binding, const std::vector<LogicalCpu>& cpus,
                                          std::vector<int> nodes) {
  std::vector<std::vector<int>> assigned(nodes.size());
  if (cpus.empty()) return assigned;
  const auto place_of = [&](const LogicalCpu& cpu) { return binding.scope == "socket" ? cpu.socket : cpu.node; };
  std::map<int, std::vector<LogicalCpu>> places;  // NUMA nodes, or sockets
  std::map<int, int> socket_of_node;
  for (const LogicalCpu& cpu : cpus) {
    places[place_of(cpu)].push_back(cpu);
    socket_of_node[cpu.node] = cpu.socket;
  }
  std::vector<int> place(nodes.size());
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto known = socket_of_node.find(nodes[rank]);
    if (known != socket_of_node.end())
      place[rank] = binding.scope == "socket" ? known->second : known->first;
    else
      place[rank] = std::next(places.begin(), static_cast<long>(rank * places.size() / nodes.size()))->first;
  }
  // The cores of a place, and the hyperthreads of each.
  const auto cores_of = [&](int where) {
    std::map<int, std::vector<int>> cores;
    for (const LogicalCpu& cpu : places[where]) {
      std::vector<int>& threads = cores[cpu.core];
      if (threads.empty() || binding.cores == "all_logical") threads.push_back(cpu.id);
    }
    std::vector<std::vector<int>> list;
    for (auto& [core, threads] : cores) list.push_back(std::move(threads));
    return list;
  };
  // unique_*: cores for each rank of a place; the smallest share where balanced.
  std::map<int, int> ranks_at;
  for (const int where : place) ++ranks_at[where];
  std::map<int, int> share;
  int fewest = 1 << 30;
  for (const auto& [where, ranks] : ranks_at) {
    share[where] = static_cast<int>(cores_of(where).size()) / ranks;
    fewest = std::min(fewest, share[where]);
  }
  std::map<int, int> seen;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const std::vector<std::vector<int>> cores = cores_of(place[rank]);
    const int total = static_cast<int>(cores.size()), index = seen[place[rank]]++, ranks = ranks_at[place[rank]];
    std::vector<int> chosen;  // indices of cores
    if (binding.mode == "all") {
      for (int core = 0; core < total; ++core) chosen.push_back(core);
    } else if (binding.mode == "single") {
      chosen = {0};
    } else if (binding.mode == "single_unique") {
      if (ranks <= total) chosen = {index};
    } else {
      const int mine = binding.balanced ? fewest : share[place[rank]];
      const int count = std::min(mine, binding.max_cores.value_or(mine));
      if (mine >= binding.min_cores)
        for (int i = 0; i < count; ++i)
          chosen.push_back(binding.mode == "unique_contiguous" ? index * mine + i : i * ranks + index);
    }
    for (const int core : chosen)
      assigned[rank].insert(assigned[rank].end(), cores[static_cast<size_t>(core)].begin(),
                            cores[static_cast<size_t>(core)].end());
    std::sort(assigned[rank].begin(), assigned[rank].end());
  }
  return assigned;
}

std::optional<std::string> bind_cpus(int local_rank, int local_world_size) {
  const std::string text = environment("TRIREME_NUMA_MAPPING");
  if (text.empty()) return std::nullopt;
  const CpuBinding binding = parse_cpu_binding(text);
  cpu_set_t set;
  std::vector<int> allowed;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int id = 0; id < CPU_SETSIZE; ++id)
      if (CPU_ISSET(static_cast<size_t>(id), &set)) allowed.push_back(id);
  const std::vector<int> gpus = gpu_nodes("/proc", "/sys");
  std::vector<int> nodes;
  for (int rank = 0; rank < local_world_size; ++rank) {
    const auto device = static_cast<size_t>(device_of(rank));
    nodes.push_back(device < gpus.size() ? gpus[device] : -1);
  }
  const std::vector<int> mine =
      assign_cpus(binding, host_cpus("/sys", allowed), nodes).at(static_cast<size_t>(local_rank));
  if (mine.empty())
    return fmt::format("not bound to CPUs: {} ranks have fewer than {} each here (TRIREME_NUMA_MAPPING={})",
                       local_world_size, counted(binding.min_cores, "core"), text);
  CPU_ZERO(&set);
  for (const int id : mine) CPU_SET(static_cast<size_t>(id), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    return fmt::format("not bound to CPUs {}: the system refuses it", ranges(mine));
  return fmt::format("rank {} of this host runs on CPUs {} (TRIREME_NUMA_MAPPING={})", local_rank, ranges(mine), text);
}

}  // namespace trireme
