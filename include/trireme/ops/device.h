#pragma once
// The device of a rank: GPU or CPU, its memory and its peak rate. Only device_cuda.cpp calls CUDA.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// GPUs that this process can use; 0 in CPU builds, on machines without any, and with TRIREME_DEVICE=cpu. ConfigError
/// if a run would use the CPU although GPUs are expected: see gpu_visibility_problem().
int visible_gpus();

/// The error if GPUs are named and absent, or installed and not usable; empty if the CPU may be used. `visible`:
/// CUDA_VISIBLE_DEVICES, null when unset; `found`: GPUs that CUDA reports; `installed`: this machine has NVIDIA GPUs;
/// `reason`: CUDA's error message when it reports none; `job_without`: in a job of Slurm that has no GPU.
std::optional<std::string> gpu_visibility_problem(const char* visible, int found, bool installed,
                                                  const std::string& reason, bool job_without = false);

struct DeviceInfo {
  std::string name;                  // "NVIDIA H200", or the processor's
  int64_t total_memory = 0;          // bytes; CPU: physical memory / local ranks
  std::optional<double> peak_flops;  // dense, of the compute dtype; nullopt for unknown GPUs
};
DeviceInfo describe_device(at::Device device, at::ScalarType compute_dtype, int local_world_size);

/// The process takes at most so much of the GPU, which describe_device() then tells as its memory. ConfigError for the
/// CPU.
void limit_device_memory(at::Device device, double gib);

/// Peak bytes since the start. GPU: the caching allocator's peak of allocated memory; CPU: peak resident set.
int64_t peak_memory(at::Device device);
/// GPU: the allocator's peak of reserved memory, fragmentation included; CPU: as peak_memory.
int64_t peak_reserved_memory(at::Device device);

/// Bytes of this host, or of the container where its limit is lower. Available: what processes may still allocate, free
/// memory and file cache.
struct HostMemory {
  int64_t total = 0, available = 0;
};
HostMemory host_memory();

/// The current use of memory, as a table: on a GPU the allocator's counters and its blocks by size; on a CPU the
/// process's resident memory.
std::string memory_state(at::Device device);

/// A copy of a host tensor, pinned where the device is a GPU. The host does not wait. The copy runs on a stream of its
/// own, beside what the current stream has queued; what is queued there afterwards waits for it.
at::Tensor copy_to_device(const at::Tensor& host, at::Device device);
/// The same of host values. [n], of their type.
template <class T>
at::Tensor copy_to_device(const std::vector<T>& values, at::Device device) {
  const at::Tensor host =
      at::empty({static_cast<int64_t>(values.size())},
                at::TensorOptions(c10::CppTypeToScalarType<T>::value).pinned_memory(device.is_cuda()));
  std::copy(values.begin(), values.end(), host.template mutable_data_ptr<T>());
  return copy_to_device(host, device);
}

/// Waits for the GPU, then cudaProfilerStart() and cudaProfilerStop(), which `nsys profile
/// --capture-range=cudaProfilerApi` and `ncu --profile-from-start off` wait for.
void start_device_capture();
void stop_device_capture();

/// Sets variables that libraries read, unless they are set. Call it while the process has one thread: a thread that
/// reads the environment while another changes it may read freed memory.
void set_library_environment(bool gpu);
/// Library settings for speed and determinism, once per process, before the first operation on a GPU.
/// `deterministic`: an operation without a deterministic form throws.
void configure_libraries(at::Device device, int local_world_size, bool deterministic);

/// Cores that this process may use.
struct UsableCores {
  int online = 1;                                          // of the host
  int bound = 1;                                           // to which a launcher has bound this process
  double quota = std::numeric_limits<double>::infinity();  // of its container, over all processes in it
};
UsableCores usable_cores();
/// Number of threads of LibTorch's CPU operations when OMP_NUM_THREADS is not set: the ranks of a host share its cores,
/// and there are at most as many threads as cores.
int threads_of_rank(const UsableCores& cores, int local_world_size);

/// "cuda 13.0" or "".
std::string gpu_library_versions();

}  // namespace trireme
