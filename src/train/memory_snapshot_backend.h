#pragma once
// Private to train/: what memory_snapshot_cuda.cpp provides where CUDA is compiled in.

#include <c10/core/CachingDeviceAllocator.h>

#include <functional>
#include <string>

namespace trireme::gpu {

/// The allocator's snapshot as pickle_memory_snapshot() writes it.
std::string memory_snapshot();
void record_memory_history(c10::CachingDeviceAllocator::CreateContextFn context, size_t entries);
/// `react` is called by the thread whose allocation fails, before the exception.
void on_out_of_memory(std::function<void()> react);

}  // namespace trireme::gpu
