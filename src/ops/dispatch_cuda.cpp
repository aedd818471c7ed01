#include "trireme/ops/dispatch.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

namespace trireme {

/// Kernels are built for sm_90a, which runs on compute capability 9.0 only.
bool has_kernels(at::Device device) {
  if (!device.is_cuda()) return false;
  enum : int { kUnknown, kNo, kYes };
  static std::array<std::atomic<int>, 64> known{};
  std::atomic<int>& answer = known.at(static_cast<size_t>(device.index()));
  int value = answer.load(std::memory_order_relaxed);
  if (value == kUnknown) {
    int major = 0, minor = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index());
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index());
    value = major == 9 && minor == 0 ? kYes : kNo;
    answer.store(value, std::memory_order_relaxed);
  }
  return value == kYes;
}

}  // namespace trireme
