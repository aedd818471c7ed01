#pragma once
// Named ranges of a step for profilers: NVTX and LibTorch's profiler, through a sink that the trainer sets while a
// profile is active. Without a sink a range costs one relaxed load.
//
// Names: "forward", "backward", "optimizer", "data", "checkpoint", "layers.3", "attention", "mlp", "all_gather
// layers.3". No name may contain "dma", "Memcpy", "Memset" or "Sync": trace tools (HTA) take such events for copies and
// drop them from computation.

#include <atomic>
#include <cstdint>
#include <string>

namespace trireme {

/// Receives the ranges of all threads. On each thread ranges end in the reverse order of their beginning.
class RangeSink {
 public:
  virtual ~RangeSink() = default;
  virtual void begin(const std::string& name) = 0;
  virtual void end() = 0;
};

namespace detail {
inline std::atomic<RangeSink*> range_sink = nullptr;
}

/// `sink` receives the ranges that begin from now on; null: ranges are not recorded. An open range ends in the sink in
/// which it began, so a sink must live until the process ends.
inline void set_range_sink(RangeSink* sink) { detail::range_sink.store(sink, std::memory_order_release); }

/// Whether ranges and collectives are recorded now. Any thread.
inline bool ranges_recorded() { return detail::range_sink.load(std::memory_order_relaxed) != nullptr; }

class ProfileRange {
 public:
  explicit ProfileRange(const char* name) : sink_(detail::range_sink.load(std::memory_order_relaxed)) {
    if (sink_ != nullptr) [[unlikely]]
      open(name);
  }
  /// "<kind> <of>": "all_gather layers.3".
  ProfileRange(const char* kind, const std::string& of) : sink_(detail::range_sink.load(std::memory_order_relaxed)) {
    if (sink_ != nullptr) [[unlikely]]
      open(std::string(kind) + ' ' + of);
  }
  /// "<list>.<index>": "layers.3".
  ProfileRange(const char* list, int64_t index) : sink_(detail::range_sink.load(std::memory_order_relaxed)) {
    if (sink_ != nullptr) [[unlikely]]
      open(std::string(list) + '.' + std::to_string(index));
  }
  ~ProfileRange() {
    if (sink_ != nullptr) [[unlikely]]
      sink_->end();
  }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  void open(const std::string& name) {
    std::atomic_thread_fence(std::memory_order_acquire);  // the sink's own state, set before it was installed
    sink_->begin(name);
  }

  RangeSink* sink_;
};

}  // namespace trireme
