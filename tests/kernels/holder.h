#pragma once
// Multiprocessors of the current device kept busy by another kernel, as a collective beside the training does.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace trireme::kernels::testing {

/// Holds `count` multiprocessors from construction to release(), but no longer than a few seconds.
class Holder {
 public:
  explicit Holder(int count);
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder();
  /// Whether all of them are held; waits for that a while.
  bool holds() const;
  /// Returns when the kernel has ended.
  void release();

 private:
  struct Flags {
    int32_t resident, released;
  };
  volatile Flags* flags_ = nullptr;  // of the host, seen by the kernel
  cudaStream_t stream_ = nullptr;
  int count_;
};

}  // namespace trireme::kernels::testing
