// The description of this system that an MLPerf submission needs (systems/NAME.json), as far as one host knows it.
#include "doctor_checks.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/ops/device.h"
#include "trireme/version.h"

#include <c10/core/DeviceType.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

namespace trireme {

namespace {

using Fields = std::map<std::string, std::string>;

/// Of MLCommons' package checker, in its order.
constexpr const char* kSystemFields =
    "submitter division status system_name number_of_nodes host_processors_per_node host_processor_model_name "
    "host_processor_core_count host_processor_vcpu_count host_processor_frequency host_processor_caches "
    "host_processor_interconnect host_memory_capacity host_storage_type host_storage_capacity host_networking "
    "host_networking_topology host_memory_configuration accelerators_per_node accelerator_model_name "
    "accelerator_host_interconnect accelerator_frequency accelerator_on-chip_memories "
    "accelerator_memory_configuration accelerator_memory_capacity accelerator_interconnect "
    "accelerator_interconnect_topology cooling hw_notes framework other_software_stack operating_system sw_notes";

std::string line_of_file(const std::filesystem::path& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// Sockets, cores and caches of the processors that are online (Linux, Documentation/ABI/testing/sysfs-devices-system-
/// cpu).
void add_processors(Fields& fields) {
  namespace fs = std::filesystem;
  std::set<std::string> sockets, cores;
  std::map<std::string, std::string> caches;
  int processors = 0;
  double megahertz = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/sys/devices/system/cpu", ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("cpu") || name.size() < 4 || !is_digit(name[3])) continue;
    const std::string socket = line_of_file(entry.path() / "topology/physical_package_id");
    if (socket.empty()) continue;  // offline
    ++processors;
    sockets.insert(socket);
    cores.insert(socket + ":" + line_of_file(entry.path() / "topology/core_id"));
    megahertz = std::max(megahertz, std::atof(line_of_file(entry.path() / "cpufreq/cpuinfo_max_freq").c_str()) / 1e3);
    for (const auto& cache : fs::directory_iterator(entry.path() / "cache", ignored)) {
      const std::string level = line_of_file(cache.path() / "level"), type = line_of_file(cache.path() / "type");
      if (!level.empty() && type != "Instruction") caches["L" + level] = line_of_file(cache.path() / "size");
    }
  }
  if (sockets.empty()) return;
  fields["host_processors_per_node"] = std::to_string(sockets.size());
  fields["host_processor_core_count"] = std::to_string(cores.size() / sockets.size());
  fields["host_processor_vcpu_count"] = std::to_string(static_cast<size_t>(processors) / sockets.size());
  if (megahertz > 0) fields["host_processor_frequency"] = fmt::format("{:.0f} MHz", megahertz);
  std::vector<std::string> each;
  for (const auto& [level, size] : caches) each.push_back(level + " " + size);
  fields["host_processor_caches"] = join(each, ", ");
}

std::string rdma_adapters() {
  namespace fs = std::filesystem;
  std::map<std::string, int> rates;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/sys/class/infiniband", ignored)) {
    const std::string rate = line_of_file(entry.path() / "ports/1/rate"),
                      layer = line_of_file(entry.path() / "ports/1/link_layer");
    ++rates[fmt::format("{} {}", layer, rate)];
  }
  std::vector<std::string> each;
  for (const auto& [rate, count] : rates) each.push_back(fmt::format("{}x {}", count, rate));
  return join(each, ", ");
}

std::string operating_system() {
  std::ifstream file("/etc/os-release");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("PRETTY_NAME=")) {
      std::erase(line, '"');
      return line.substr(line.find('=') + 1);
    }
  return "";
}

/// The package checker's words for the values of MLPERF_SUBMISSION_STATUS.
std::string long_status(const std::string& status) {
  if (status == "onprem") return "Available on-premise";
  if (status == "cloud") return "Available cloud";
  if (status == "preview") return "Preview";
  if (status == "research") return "Research, Development, or Internal (RDI)";
  return status;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> system_description() {
  Fields fields;
  add_processors(fields);
  const DeviceInfo host = describe_device(at::kCPU, at::kFloat, 1);
  fields["host_processor_model_name"] = host.name;
  fields["host_memory_capacity"] = format_bytes(host.total_memory);
  fields["host_networking"] = rdma_adapters();
  fields["operating_system"] = operating_system();
  fields["framework"] = fmt::format("Trireme {} ({}), LibTorch {}", kVersion, kCommit, TORCH_VERSION);
  for (const auto& [name, value] : gpu_description()) fields[name] = value;
  utsname kernel{};
  if (uname(&kernel) == 0) {
    std::string& stack = fields["other_software_stack"];
    stack += fmt::format("{}{} {}", stack.empty() ? "" : ", ", kernel.sysname, kernel.release);
  }
  fields["submitter"] = environment("MLPERF_SUBMISSION_ORG");
  fields["division"] = environment("MLPERF_SUBMISSION_DIVISION");
  fields["status"] = environment("MLPERF_SUBMISSION_STATUS");
  for (const char* name : {"SLURM_JOB_NUM_NODES", "DGXNNODES"})
    if (const std::string nodes = environment(name); !nodes.empty()) fields["number_of_nodes"] = nodes;
  if (fields["number_of_nodes"].empty()) fields["number_of_nodes"] = "1";
  std::vector<std::pair<std::string, std::string>> described;
  for (const std::string& name : split(kSystemFields, ' ')) {
    std::string variable = "MLPERF_" + name;
    for (char& c : variable) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    const std::string given = environment(variable.c_str());
    const std::string& value = given.empty() ? fields[name] : given;
    described.emplace_back(name, name == "status" ? long_status(value) : value);
  }
  return described;
}

}  // namespace trireme
