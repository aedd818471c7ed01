#include "parallel_copy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace trireme {

namespace {
/// Bytes of one task: small enough for several tasks per thread even in a small unit, and for little pinned memory.
constexpr int64_t kTaskBytes = int64_t{16} << 20;
}  // namespace

ParallelCopy::ParallelCopy(at::Device device, int threads) : device_(device) {
  for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this] { work(); });
}

ParallelCopy::~ParallelCopy() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    tasks_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ParallelCopy::add(const std::byte* source, at::ScalarType dtype, at::Tensor target) {
  const int64_t size = static_cast<int64_t>(c10::elementSize(dtype)), step = kTaskBytes / size;
  {
    const std::lock_guard lock(mutex_);
    for (int64_t begin = 0; begin < target.numel(); begin += step, ++open_)
      tasks_.push_back({source + begin * size, dtype, target.narrow(0, begin, std::min(step, target.numel() - begin))});
  }
  changed_.notify_all();
}

void ParallelCopy::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return open_ == 0; });
  if (!failure_) return;
  const std::exception_ptr failure = std::exchange(failure_, nullptr);
  std::rethrow_exception(failure);
}

void ParallelCopy::work() {
  const at::NoGradGuard no_grad;
  const bool gpu = !device_.is_cpu();
  std::optional<c10::StreamGuard> guard;
  std::optional<c10::Stream> stream;
  at::Tensor pinned;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (gpu && !stream) {
        stream = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
        guard.emplace(*stream);
        pinned = at::empty({kTaskBytes}, at::TensorOptions(at::kByte).pinned_memory(true));
      }
      const int64_t bytes = task.target.numel() * static_cast<int64_t>(c10::elementSize(task.dtype));
      if (gpu) {
        std::memcpy(pinned.mutable_data_ptr(), task.source, static_cast<size_t>(bytes));
        task.target.copy_(pinned.narrow(0, 0, bytes).view(task.dtype).to(device_, /*non_blocking=*/true));
        stream->synchronize();
      } else {
        // from_blob() needs a mutable pointer; the read-only mapping is not written.
        task.target.copy_(at::from_blob(const_cast<std::byte*>(task.source), {task.target.numel()},
                                        at::TensorOptions().dtype(task.dtype)));
      }
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure && !failure_) failure_ = failure;
    if (--open_ == 0) changed_.notify_all();
  }
}

}  // namespace trireme
