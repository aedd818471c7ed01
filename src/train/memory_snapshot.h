#pragma once
// Private to train/: the state and the history of LibTorch's GPU allocator as torch.cuda.memory._snapshot() gives them,
// for pytorch.org/memory_viz and torch.cuda._memory_viz. Frames are the ranges that were open.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>

namespace trireme {

/// Entries of the history that an allocator keeps: about fifty steps of a 7B model. The viewer reads a list of some
/// 120,000 entries at most.
constexpr size_t kMemoryHistory = 100'000;

/// From now on the GPU's allocator keeps the latest kMemoryHistory allocations and frees, each with its open ranges.
void record_memory_history();
/// Writes the snapshot of the GPU's allocator, a pickle.
void write_memory_snapshot(const std::filesystem::path& file);
/// When memory runs out, before anything is freed, the snapshot is written, once: <folder>/rank<r>.oom.memory.pickle.
/// Nothing on a CPU.
void watch_out_of_memory(at::Device device, const std::filesystem::path& folder, int rank);
/// The file that watch_out_of_memory() has written; empty: none.
std::filesystem::path out_of_memory_snapshot();

}  // namespace trireme
