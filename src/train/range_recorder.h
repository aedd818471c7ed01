#pragma once
// Private to train/: ranges as NVTX ranges and as user annotations of LibTorch's profiler, and for the history of
// memory.

#include "trireme/base/profile_range.h"

#include <c10/core/Allocator.h>

#include <memory>
#include <string>

namespace trireme {

class RangeRecorder final : public RangeSink {
 public:
  /// Of the process; lives until it ends.
  static RangeRecorder& instance();
  void begin(const std::string& name) override { begin(name, name); }
  /// `annotation`: its name in the trace, `nvtx`: its name for NVTX.
  void begin(const std::string& annotation, const std::string& nvtx);
  void end() override;
  /// Whether ranges that begin from now on reach the profilers; otherwise only open_range_context() returns them.
  void annotate(bool on);
};

/// The ranges that are open in this thread, the innermost first, as a torch::CapturedTraceback: they take the place of
/// Python's stack frames.
std::shared_ptr<c10::GatheredContext> open_range_context();

}  // namespace trireme
