#pragma once
// Private to train/: ranges as NVTX ranges and as user annotations of LibTorch's profiler.

#include "trireme/base/profile_range.h"

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
};

}  // namespace trireme
