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

/// grid.y ends at 65,535: longer dimensions are launched in pieces. Calls launch(first, count), which returns
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

/// A block gets more than 48 KiB of shared memory, static and dynamic together, only when its kernel asks for it. The
/// permission belongs to the current device: ask before every launch, never once a process. No kernel here has more
/// than 24 KiB of static shared memory.
template <class Kernel>
cudaError_t allow_shared_memory(Kernel kernel, size_t bytes) {
  if (bytes <= 24 * 1024) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

}  // namespace trireme::kernels
