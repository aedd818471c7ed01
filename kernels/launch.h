#pragma once
// Properties of the current device, and helpers for kernel launches. No allocation, no synchronisation.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

/// Number of multiprocessors of the current device; 0 without a device.
inline int multiprocessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return 0;
  return count;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// grid.y is at most 65,535, so longer dimensions are launched in pieces. Calls launch(first, count), which returns
/// cudaError_t, for each piece until one fails.
template <class F>
cudaError_t launch_pieces(int64_t total, const F& launch) {
  constexpr int64_t kMost = 65535;
  for (int64_t first = 0; first < total; first += kMost) {
    const cudaError_t error = launch(first, static_cast<unsigned>(total - first < kMost ? total - first : kMost));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

/// Raises a kernel's limit of dynamic shared memory, which is needed if static and dynamic shared memory together
/// exceed 48 KiB. The attribute belongs to the current device, so it is set before every launch and not once a process.
/// No kernel here has more than 24 KiB of static shared memory.
template <class Kernel>
cudaError_t allow_shared_memory(Kernel kernel, size_t bytes) {
  if (bytes <= 24 * 1024) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

}  // namespace trireme::kernels
