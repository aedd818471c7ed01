#pragma once
// Private to fsdp/: reads checkpoint tensors into shards with several threads.

#include "trireme/formats/huggingface/weight_source.h"
#include "trireme/fsdp/layout.h"
#include "trireme/nn/unit.h"

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace trireme {

/// Threads that copy pieces of mapped files into tensors. One thread reads the page cache, or copies pageable memory to
/// a GPU, at a few GB/s; several threads, each with its own pinned memory and stream, reach the bandwidth of the bus.
/// ModelError for a value that is not finite in the target's type. A failure is kept: later elements are not read, and
/// the caller still takes part in the collectives of the other ranks.
class WeightReader {
 public:
  /// check_weights() has accepted `source`, which outlives the reader.
  WeightReader(const WeightSource& source, at::Device device, int threads);
  ~WeightReader();

  /// Queues the copy of a piece of the checkpoint tensor `part`, which outlives the reader, to `target` (flat,
  /// contiguous).
  void read(const ParameterPart& part, const LayoutPiece& piece, const at::Tensor& target);
  /// Waits until all queued copies are complete and visible to every stream.
  void wait();
  /// Calls `body` and keeps its exception.
  void keep_failure(const std::function<void()>& body);

  const std::exception_ptr& failure() const { return failure_; }

 private:
  struct Task {
    const ParameterPart* part;
    const std::byte* source;
    at::ScalarType dtype;
    at::Tensor target;
  };
  void work();
  void check_finite(const Task& task) const;

  const WeightSource& source_;
  at::Device device_;
  std::exception_ptr failure_;  // of the caller's thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  int64_t open_ = 0;  // queued or running
  bool stopping_ = false;
  std::exception_ptr thread_failure_;
  std::vector<std::thread> threads_;
};

}  // namespace trireme
