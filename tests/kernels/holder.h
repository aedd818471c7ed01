#pragma once
// Occupies multiprocessors of the current device with another kernel, as a collective does during training.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels::testing {

/// Occupies `count` multiprocessors from construction to release(), but for a few seconds at most.
class Holder {
 public:
  explicit Holder(int count);
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder();
  /// Whether all of them are occupied; waits a while for that.
  bool holds() const;
  /// Returns when the kernel has ended.
  void release();

 private:
  struct Flags {
    int32_t resident, released;
  };
  volatile Flags* flags_ = nullptr;  // host memory, mapped for the kernel
  cudaStream_t stream_ = nullptr;
  int count_;
};

}  // namespace trireme::kernels::testing
