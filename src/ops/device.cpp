#include "trireme/ops/device.h"

#include "device_backend.h"
#include "trireme/base/cuda_libraries.h"
#include "trireme/base/error.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/ops/dispatch.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string_view>

namespace trireme {

int visible_gpus() {
  const std::string wanted = environment("TRIREME_DEVICE");
  if (wanted == "cpu") return 0;
  if (!wanted.empty())
    throw ConfigError(fmt::format("TRIREME_DEVICE='{}' is not 'cpu'; unset it to use the GPUs", wanted));
#ifdef TRIREME_WITH_CUDA
  if (const std::string& problem = cuda_libraries_problem(); !problem.empty())
    throw ConfigError(
        fmt::format("LibTorch's CUDA library cannot be loaded: {}: install LibTorch with its CUDA wheels again, or set "
                    "TRIREME_DEVICE=cpu",
                    problem));
  std::string reason;
  const int found = gpu::count(reason);
  const bool installed = access("/dev/nvidiactl", F_OK) == 0;
#else
  const std::string reason = "this build has no CUDA code: configure with -DTRIREME_CUDA=ON";
  const int found = 0;
  const bool installed = false;
#endif
  const bool job_without = !environment("SLURM_JOB_ID").empty() && environment("SLURM_JOB_GPUS").empty() &&
                           environment("SLURM_STEP_GPUS").empty() && environment("SLURM_GPUS_ON_NODE").empty();
  if (const auto problem =
          gpu_visibility_problem(std::getenv("CUDA_VISIBLE_DEVICES"), found, installed, reason, job_without))
    throw ConfigError(*problem);
  return found;
}

std::optional<std::string> gpu_visibility_problem(const char* visible, int found, bool installed,
                                                  const std::string& reason, bool job_without) {
  const std::string why = reason.empty() ? "" : fmt::format(" ({})", reason);
  if (visible == nullptr) {
    if (found > 0 || !installed) return std::nullopt;
    return fmt::format("this machine has NVIDIA GPUs and CUDA shows none of them{}: {}, or set TRIREME_DEVICE=cpu", why,
                       job_without ? "the Slurm job asked for no GPU; give sbatch or salloc --gpus-per-node=N"
                                   : "see what nvidia-smi says");
  }
  // These values hide every GPU on purpose. CUDA ignores the entries from the first that names no GPU.
  if (const std::string_view text = visible; text.empty() || text == "-1" || text == "NoDevFiles") return std::nullopt;
  const auto named = static_cast<int>(split(visible, ',').size());
  if (found == named) return std::nullopt;
  return fmt::format(
      "CUDA_VISIBLE_DEVICES='{}' names {}, and CUDA shows {}{}: name each once, as nvidia-smi -L lists them, or "
      "set TRIREME_DEVICE=cpu",
      visible, counted(named, "GPU"), found, why);
}

void limit_device_memory(at::Device device, double gib) {
  if constexpr (kCudaBuild)
    if (device.is_cuda()) return gpu::limit_memory(device, static_cast<int64_t>(gib * (1 << 30)));
  throw ConfigError("--device-memory-gib is for GPUs, and this run is on CPUs (with --dry-run: it plans for GPUs)");
}

DeviceInfo describe_device(at::Device device, at::ScalarType compute_dtype, int local_world_size) {
  if constexpr (kCudaBuild)
    if (device.is_cuda()) return gpu::describe(device, compute_dtype);
  DeviceInfo info;
  info.name = "CPU";
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) {
      info.name = line.substr(line.find(':') + 2);
      break;
    }
  }
  info.total_memory =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / std::max(1, local_world_size);
  return info;
}

int64_t peak_memory(at::Device device) {
  if constexpr (kCudaBuild)
    if (device.is_cuda()) return gpu::peak_allocated(device);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

int64_t peak_reserved_memory(at::Device device) {
  if constexpr (kCudaBuild)
    if (device.is_cuda()) return gpu::peak_reserved(device);
  return peak_memory(device);
}

HostMemory host_memory() {
  const int64_t page = sysconf(_SC_PAGESIZE);
  HostMemory memory{sysconf(_SC_PHYS_PAGES) * page, sysconf(_SC_AVPHYS_PAGES) * page};
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);)
    if (line.starts_with("MemAvailable:")) memory.available = std::atoll(line.c_str() + line.find(':') + 1) * 1024;
  // Limits of a container: cgroup v2, then v1; no number, or one beyond all memory, means no limit. Its use counts
  // files, too, which make way.
  for (const auto& [limit_file, used_file, stat_file, name] :
       {std::array{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat",
                   "inactive_file "},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
         "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file "}}) {
    double limit = 0, used = 0;
    std::ifstream stat(stat_file);
    if (!(std::ifstream(limit_file) >> limit) || !(std::ifstream(used_file) >> used)) continue;
    for (std::string line; std::getline(stat, line);)
      if (line.starts_with(name)) used -= std::atof(line.c_str() + std::string_view(name).size());
    memory.total = static_cast<int64_t>(std::min(static_cast<double>(memory.total), limit));
    memory.available =
        static_cast<int64_t>(std::min(static_cast<double>(memory.available), std::max(0.0, limit - used)));
    break;
  }
  return memory;
}

std::string memory_state(at::Device device) {
  if constexpr (kCudaBuild)
    if (device.is_cuda()) return gpu::memory_state(device);
  std::string text = fmt::format("{:<24}{:>14}\n", "peak resident memory", format_bytes(peak_memory(device)));
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS") || line.starts_with("VmSize") || line.starts_with("VmPeak")) text += line + '\n';
  return text;
}

void start_device_capture() {
  if constexpr (kCudaBuild) gpu::start_capture();
}

void stop_device_capture() {
  if constexpr (kCudaBuild) gpu::stop_capture();
}

at::Tensor copy_to_device(const at::Tensor& host, at::Device device) {
  if (!device.is_cuda() || host.numel() == 0) return host.to(device);
  const c10::impl::VirtualGuardImpl guard(device.type());
  thread_local std::map<c10::DeviceIndex, c10::Stream> streams;
  if (!streams.contains(device.index())) streams.emplace(device.index(), guard.getStreamFromGlobalPool(device));
  const c10::Stream current = guard.getStream(device), copies = streams.at(device.index());
  at::Tensor copy;
  {
    const c10::StreamGuard on(copies);
    copy = host.to(device, /*non_blocking=*/true);
  }
  c10::Event done(device.type());
  done.record(copies);
  done.block(current);
  copy.record_stream(current);
  return copy;
}

void set_library_environment(bool gpu) {
  const auto set = [](const char* name, const char* value) { setenv(name, value, /*overwrite=*/0); };
  if (gpu) {
    // The allocator's fixed segments fragment; a run whose plan fills the device would run out of memory.
    set("PYTORCH_ALLOC_CONF", "expandable_segments:True");
    // NVLink multicast stays off by design: one faulty program that uses it can take a host's GPUs out of service.
    set("NCCL_NVLS_ENABLE", "0");
  } else {
    // Kineto was built with CUDA and always looks for GPUs: where no driver answers it prints an error of its highest
    // level. The output can only be set through the environment.
    set("KINETO_LOG_LEVEL", "5");
  }
}

void configure_libraries(at::Device device, int local_world_size, bool deterministic) {
  if (deterministic) {
    // cuBLAS needs no CUBLAS_WORKSPACE_CONFIG: LibTorch gives it a workspace. With that variable LibTorch parses it for
    // every product, which takes tens of microseconds.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    // Filling new tensors with NaN is for finding reads of uninitialised memory, and costs a pass over each.
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  // fp32 means fp32: TF32 keeps ten bits of mantissa and would break the fp32 parity with the CPU.
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setAllowTF32CuDNN(false);
  if (device.is_cpu() && std::getenv("OMP_NUM_THREADS") == nullptr)
    at::set_num_threads(threads_of_rank(usable_cores(), local_world_size));
}

int threads_of_rank(const UsableCores& cores, int local_world_size) {
  const double of_host = std::min(static_cast<double>(cores.online), cores.quota);
  const int share = static_cast<int>(of_host) / std::max(1, local_world_size);
  return std::max(1, std::min(cores.bound, share));
}

UsableCores usable_cores() {
  UsableCores cores;
  cores.online = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  cpu_set_t set;
  cores.bound = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : cores.online;
  // Limits of a container: cgroup v2, then v1; "max" and -1 mean no limit.
  double quota = 0, period = 0;
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file >> quota >> period && quota > 0 && period > 0) {
    cores.quota = quota / period;
  } else if (std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
             period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
             quota_file >> quota && period_file >> period && quota > 0 && period > 0) {
    cores.quota = quota / period;
  }
  return cores;
}

std::string gpu_library_versions() {
  if constexpr (kCudaBuild) return gpu::library_versions();
  return "";
}

}  // namespace trireme
