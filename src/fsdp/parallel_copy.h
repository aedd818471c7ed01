#pragma once
// Private to fsdp/: checkpoint bytes on their way into shards, many at a time.

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace trireme {

/// Threads that copy pieces of mapped files into tensors. One thread copies from the page cache at a few GB/s, pageable
/// memory to a GPU no faster: several threads, each through pinned memory and a stream of its own, reach the bus.
class ParallelCopy {
 public:
  ParallelCopy(at::Device device, int threads);
  ~ParallelCopy();

  /// Queues target (flat, contiguous) = the target.numel() values of `dtype` at `source`, which stays readable until
  /// wait().
  void add(const std::byte* source, at::ScalarType dtype, at::Tensor target);
  /// Until everything queued is in its place, for any stream to read. Throws what a copy threw.
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
  int64_t open_ = 0;  // queued or under way
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

}  // namespace trireme
