#pragma once
// Private to train/: the state and the history of LibTorch's GPU allocator in the layout of
// torch.cuda.memory._snapshot(), which pytorch.org/memory_viz and torch.cuda._memory_viz read.

#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

/// Where an allocation was made: the ranges that were open, the innermost first.
struct RangeContext final : c10::GatheredContext {
  std::vector<std::string> ranges;
};

/// The snapshot as a pickle of protocol 2: dictionaries, lists, texts and integers only. Contexts of other kinds than
/// RangeContext give no frames.
std::string pickle_memory_snapshot(const std::vector<c10::CachingDeviceAllocator::SegmentInfo>& segments,
                                   const std::vector<std::vector<c10::CachingDeviceAllocator::TraceEntry>>& traces);

/// Entries of the history that an allocator keeps: about a hundred steps of a 7B model.
constexpr size_t kMemoryHistory = 200'000;

/// From now on the GPU's allocator keeps the latest kMemoryHistory allocations and frees, each with its open ranges.
void record_memory_history();
/// Writes the snapshot of the GPU's allocator.
void write_memory_snapshot(const std::filesystem::path& file);
/// When memory runs out, before anything is freed, the snapshot is written, once: <folder>/rank<r>.oom.memory.pickle.
/// Nothing on a CPU.
void watch_out_of_memory(at::Device device, const std::filesystem::path& folder, int rank);
/// The file that watch_out_of_memory() has written; empty: none.
std::filesystem::path out_of_memory_snapshot();

}  // namespace trireme
