// MPI, Slurm and the network, as seen from one host.
#include "doctor_checks.h"
#include "trireme/base/error.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/comm/sockets.h"
#include "trireme/launcher/launcher.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <optional>
#include <set>

namespace trireme {

namespace {

using State = DoctorCheck::State;

/// The output of a program within five seconds; nullopt where it is not in PATH or fails.
std::optional<std::string> output_of(const std::string& command) {
  try {
    const CommandResult result = run_command({"sh", "-c", "timeout 5 " + command + " 2>&1"});
    if (result.code != 0) return std::nullopt;
    return result.output;
  } catch (const Error&) {
    return std::nullopt;  // no shell
  }
}

std::string first_line(const std::string& text) { return split(text, '\n').front(); }

std::string mpi_library() {
  constexpr int kMostCharacters = 8192;  // MPI_MAX_LIBRARY_VERSION_STRING is at most this
  void* const library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "";
  using Version = int (*)(char*, int*);
  const auto version = reinterpret_cast<Version>(dlsym(library, "MPI_Get_library_version"));
  std::string text(kMostCharacters, '\0');
  int length = 0;
  if (version == nullptr || version(text.data(), &length) != 0) return "libmpi.so.40";
  text.resize(static_cast<size_t>(std::clamp(length, 0, kMostCharacters)));
  return split(first_line(text), ',').front();
}

DoctorCheck mpi_check() {
  const std::string library = mpi_library();
  const auto launcher = output_of("mpirun --version");
  const std::string advice = "several CPU ranks need it (GPU ranks do not): apt-get install openmpi-bin libopenmpi-dev";
  if (library.empty() && !launcher) return {State::kMissing, "MPI", "no libmpi.so.40, no mpirun", advice, 0};
  return {launcher && !library.empty() ? State::kOk : State::kWarning, "MPI",
          fmt::format("{}, {}", library.empty() ? "no libmpi.so.40" : library,
                      launcher ? "launcher " + first_line(*launcher) : "no mpirun in PATH"),
          launcher && !library.empty() ? "" : advice, 0};
}

DoctorCheck slurm_check() {
  const auto version = output_of("srun --version");
  if (!version)
    return {State::kMissing, "Slurm", "srun is not in PATH or does not answer",
            "one host needs none; on a cluster look here from a node of a job", 0};
  const auto listed = output_of("srun --mpi=list");
  std::set<std::string> plugins;
  std::string word;
  for (const char c : listed.value_or("") + " ") {
    const bool inside = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    if (inside) word += c;
    if (!inside && (word.starts_with("pmi") || word == "none")) plugins.insert(word);
    if (!inside) word.clear();
  }
  const bool pmix = std::any_of(plugins.begin(), plugins.end(), [](const auto& p) { return p.starts_with("pmix"); });
  const std::string all = join({plugins.begin(), plugins.end()}, ", ");
  return {pmix ? State::kOk : State::kWarning, "Slurm",
          fmt::format("{}; --mpi: {}", first_line(*version), all.empty() ? "not known" : all),
          pmix ? "" : "CPU ranks need a Slurm with PMIx (libpmix2); GPU ranks start with srun --mpi=none", 0};
}

DoctorCheck name_check() {
  const std::string name = host_name();
  std::string why;
  const std::vector<std::string> addresses = addresses_of(name, &why);
  if (addresses.empty())
    return {State::kWarning, "host name", why, "add it to DNS or /etc/hosts: ranks of other hosts look for it", 0};
  const bool local = std::all_of(addresses.begin(), addresses.end(), is_loopback_address);
  return {
      local ? State::kWarning : State::kOk, "host name", fmt::format("{} is {}", name, join(addresses, ", ")),
      local ? "one host works; for several, MASTER_ADDR must be a name that leads to this host from the others" : "",
      0};
}

DoctorCheck interface_check() {
  std::vector<std::string> shown;
  for (const InterfaceAddress& at : interface_addresses()) {
    if (at.loopback || at.address.find(':') != std::string::npos) continue;
    std::string text = fmt::format("{} {}", at.interface, at.address);
    // Virtual interfaces have no speed, or -1.
    if (std::ifstream file(fmt::format("/sys/class/net/{}/speed", at.interface)); file) {
      int64_t speed = 0;
      if (file >> speed && speed > 0) text += fmt::format(" ({} Gb/s)", static_cast<double>(speed) / 1000);
    }
    shown.push_back(text);
  }
  std::vector<std::string> adapters;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", ignored))
    adapters.push_back(entry.path().filename().string());
  std::sort(adapters.begin(), adapters.end());
  if (shown.empty() && adapters.empty())
    return {State::kWarning, "network", "no interface but the loopback", "one host works, several do not", 0};
  return {State::kOk, "network",
          join(shown, ", ") + (adapters.empty() ? "; no RDMA adapter" : "; RDMA: " + join(adapters, ", ")), "", 0};
}

}  // namespace

std::vector<DoctorCheck> cluster_checks(bool gpus) {
  DoctorCheck mpi = mpi_check();
  // GPU ranks use NCCL: what MPI lacks is no fault there.
  if (gpus && mpi.state == State::kMissing) mpi.state = State::kWarning;
  return {mpi, slurm_check(), name_check(), interface_check()};
}

}  // namespace trireme
