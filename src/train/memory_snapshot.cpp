#include "memory_snapshot.h"

#include "range_recorder.h"
#include "trireme/base/cuda_libraries.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"

#ifdef TRIREME_WITH_CUDA
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif
#include <fmt/format.h>

#include <exception>
#include <mutex>
#include <string>

namespace trireme {

namespace {

/// The file that watch_out_of_memory() has written, for the error message.
struct WrittenSnapshot {
  std::mutex mutex;
  std::filesystem::path file;
};
WrittenSnapshot& written_snapshot() {
  static auto* written = new WrittenSnapshot;
  return *written;
}

#ifdef TRIREME_WITH_CUDA
/// torch::cuda::_memory_snapshot_pickled() of torch/csrc/cuda/memory_snapshot.h. libtorch_cuda is not linked, but
/// loaded (cuda_libraries.h).
std::string pickled_snapshot() {
  using Function = std::string (*)();
  static const auto function = reinterpret_cast<Function>(
      library_function("libtorch_cuda.so", "_ZN5torch4cuda24_memory_snapshot_pickledB5cxx11Ev"));
  return function();
}

/// An exception must not leave the allocator's observer; a library that catches the first failure and asks for less may
/// fail again.
void write_out_of_memory(const std::filesystem::path& file) {
  const std::lock_guard lock(written_snapshot().mutex);
  if (!written_snapshot().file.empty()) return;
  try {
    write_memory_snapshot(file);
    written_snapshot().file = file;
  } catch (const std::exception& error) {
    log_warn(fmt::format("the allocator's snapshot was not written: {}", error.what()));
  }
}
#endif

}  // namespace

void record_memory_history() {
#ifdef TRIREME_WITH_CUDA
  c10::cuda::CUDACachingAllocator::recordHistory(/*enabled=*/true, &open_range_context, kMemoryHistory,
                                                 c10::CachingDeviceAllocator::RecordContext::ALL,
                                                 /*clearHistory=*/false, /*skip_actions=*/{});
#endif
}

void write_memory_snapshot([[maybe_unused]] const std::filesystem::path& file) {
#ifdef TRIREME_WITH_CUDA
  make_directories(file.parent_path());
  write_file_atomic(file, pickled_snapshot());
#endif
}

void watch_out_of_memory(at::Device device, [[maybe_unused]] const std::filesystem::path& folder,
                         [[maybe_unused]] int rank) {
  if (!device.is_cuda()) return;
#ifdef TRIREME_WITH_CUDA
  at::globalContext().lazyInitDevice(at::kCUDA);  // there are no allocators to observe before
  c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver(
      [file = folder / fmt::format("rank{}.oom.memory.pickle", rank)](int64_t, size_t, size_t, size_t) {
        write_out_of_memory(file);
      });
#endif
}

std::filesystem::path out_of_memory_snapshot() {
  const std::lock_guard lock(written_snapshot().mutex);
  return written_snapshot().file;
}

}  // namespace trireme
