#pragma once
// Private to fsdp/: copies checkpoint bytes into shards with several threads.

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace trireme {

/// Threads that copy pieces of mapped files into tensors. One thread reads the page cache, or copies pageable memory to
/// a GPU, at a few GB/s; several threads, each with its own pinned memory and stream, reach the bandwidth of the bus.
class ParallelCopy {
 public:
  ParallelCopy(at::Device device, int threads);
  ~ParallelCopy();

  /// Queues the copy of target.numel() values of `dtype` at `source` to target (flat, contiguous). `source` must stay
  /// readable until wait().
  void add(const std::byte* source, at::ScalarType dtype, at::Tensor target);
  /// Waits until all queued copies are complete and visible to every stream. Rethrows the exception of a failed copy.
  void wait();

 private:
  struct Task {
    const std::byte* source;
    at::ScalarType dtype;
    at::Tensor target;
  };
  void work();

  at::Device device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  int64_t open_ = 0;  // queued or running
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

}  // namespace trireme
