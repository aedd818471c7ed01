#pragma once
// The checks of `trireme doctor`: each fact of this machine with what to do about it.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

struct DoctorCheck {
  enum class State { kOk, kWarning, kMissing } state = State::kOk;
  std::string name, value;
  std::string advice;  // what to do; empty: nothing
  int blocks = 0;      // exit code of a run that this fact ends; 0: training works
};

/// "ok", "warning", "missing".
const char* state_name(DoctorCheck::State state);

/// Driver, CUDA, NCCL and GPUs with the peer access between them. The driver's library is loaded when this is called:
/// machines without it have no GPUs.
std::vector<DoctorCheck> gpu_checks();
/// Versions, processor, memory, limits of this process.
std::vector<DoctorCheck> machine_checks();
/// Speed and space of the file system of `folder`, in which a file is written, read and removed; shared memory.
std::vector<DoctorCheck> disk_checks(const std::filesystem::path& folder);
/// MPI and Slurm; host name and network interfaces. `gpus`: the machine has some.
std::vector<DoctorCheck> cluster_checks(bool gpus);

/// The fields of an MLPerf system description (systems/NAME.json) with their values, in their order; empty if this host
/// does not know it. MLPERF_<FIELD> in the environment, such as MLPERF_COOLING, replaces a found value.
std::vector<std::pair<std::string, std::string>> system_description();
/// The fields of the GPUs.
std::vector<std::pair<std::string, std::string>> gpu_description();

}  // namespace trireme
