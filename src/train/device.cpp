#include "trireme/train/device.h"

#include "device_backend.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <thread>

namespace trireme {

int visible_gpus() {
  const char* wanted = std::getenv("TRIREME_DEVICE");
  if (wanted != nullptr && std::string_view(wanted) == "cpu") return 0;
#ifdef TRIREME_WITH_CUDA
  return gpu::count();
#else
  return 0;
#endif
}

DeviceInfo describe_device(at::Device device, at::ScalarType compute_dtype, int local_world_size) {
#ifdef TRIREME_WITH_CUDA
  if (device.is_cuda()) return gpu::describe(device, compute_dtype);
#endif
  (void)device;
  (void)compute_dtype;
  DeviceInfo info;
  info.name = "CPU";
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) {
      info.name = line.substr(line.find(':') + 2);
      break;
    }
  }
  info.total_memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / std::max(1, local_world_size);
  return info;
}

int64_t peak_memory(at::Device device) {
#ifdef TRIREME_WITH_CUDA
  if (device.is_cuda()) return gpu::peak_allocated(device);
#endif
  (void)device;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

int64_t peak_reserved_memory(at::Device device) {
#ifdef TRIREME_WITH_CUDA
  if (device.is_cuda()) return gpu::peak_reserved(device);
#endif
  return peak_memory(device);
}

void configure_libraries(at::Device device, int local_world_size) {
  // fp32 means fp32: TF32 keeps ten bits of mantissa and would break the fp32 parity with the CPU.
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setAllowTF32CuDNN(false);
  // Without it the allocator's fixed segments leave holes that a run planned to the last gibibytes cannot afford.
  if (device.is_cuda()) setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True", /*overwrite=*/0);
  if (device.is_cpu() && std::getenv("OMP_NUM_THREADS") == nullptr) {
    // Ranks of one host share its cores; more threads than cores makes all of them slower.
    const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    at::set_num_threads(std::max(1, cores / std::max(1, local_world_size)));
  }
}

std::string gpu_library_versions() {
#ifdef TRIREME_WITH_CUDA
  return gpu::library_versions();
#else
  return "";
#endif
}

}  // namespace trireme
