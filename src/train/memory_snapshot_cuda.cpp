#include "memory_snapshot_backend.h"

#include "memory_snapshot.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <utility>

namespace trireme::gpu {

std::string memory_snapshot() {
  const auto snapshot = c10::cuda::CUDACachingAllocator::snapshot();
  return pickle_memory_snapshot(snapshot.segments, snapshot.device_traces);
}

void record_memory_history(c10::CachingDeviceAllocator::CreateContextFn context, size_t entries) {
  c10::cuda::CUDACachingAllocator::recordHistory(/*enabled=*/true, context, entries,
                                                 c10::CachingDeviceAllocator::RecordContext::ALL,
                                                 /*clearHistory=*/false, /*skip_actions=*/{});
}

void on_out_of_memory(std::function<void()> react) {
  at::globalContext().lazyInitDevice(at::kCUDA);  // there are no allocators to observe before
  c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver(
      [react = std::move(react)](int64_t, size_t, size_t, size_t) { react(); });
}

}  // namespace trireme::gpu
