#pragma once
// What launchers ask of the current device. No allocation, no synchronisation.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels {

/// Multiprocessors of the current device; 0 when there is none.
inline int multiprocessors() {
  int device = 0, count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return 0;
  return count;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// A block gets more than 48 KiB of shared memory, static and dynamic together, only when its kernel says so once. No
/// kernel here has more than 24 KiB of the static kind.
template <class Kernel>
cudaError_t allow_shared_memory(Kernel kernel, size_t bytes) {
  if (bytes <= 24 * 1024) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

}  // namespace trireme::kernels
