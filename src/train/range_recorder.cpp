#include "range_recorder.h"

#include "memory_snapshot.h"

#include <ATen/record_function.h>

#include <atomic>
#include <memory>
#include <vector>

#ifdef TRIREME_WITH_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace trireme {

namespace {

struct OpenRange {
  std::string name;
  std::unique_ptr<at::RecordFunction> annotation;  // null: the range does not reach the profilers
};

/// Of one thread.
struct OpenRanges {
  std::vector<OpenRange> ranges;          // innermost last
  std::shared_ptr<RangeContext> context;  // made when it is first asked for; null after a change
};

OpenRanges& open_ranges() {
  thread_local OpenRanges open;
  return open;
}

std::atomic<bool> annotates = false;

}  // namespace

RangeRecorder& RangeRecorder::instance() {
  static auto* recorder = new RangeRecorder;  // never destroyed: ranges of other threads may end later
  return *recorder;
}

void RangeRecorder::annotate(bool on) { annotates = on; }

void RangeRecorder::begin(const std::string& annotation, [[maybe_unused]] const std::string& nvtx) {
  OpenRange range{annotation, nullptr};
  if (annotates) {
#ifdef TRIREME_WITH_CUDA
    nvtxRangePushA(nvtx.c_str());
#endif
    range.annotation = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    if (range.annotation->isActive()) range.annotation->before(annotation);
  }
  open_ranges().ranges.push_back(std::move(range));
  open_ranges().context.reset();
}

void RangeRecorder::end() {
  OpenRanges& open = open_ranges();
  if (open.ranges.empty()) return;
#ifdef TRIREME_WITH_CUDA
  const bool annotated = open.ranges.back().annotation != nullptr;
#endif
  open.ranges.pop_back();
  open.context.reset();
#ifdef TRIREME_WITH_CUDA
  if (annotated) nvtxRangePop();
#endif
}

std::shared_ptr<c10::GatheredContext> open_range_context() {
  OpenRanges& open = open_ranges();
  if (open.context == nullptr) {
    open.context = std::make_shared<RangeContext>();
    for (auto range = open.ranges.rbegin(); range != open.ranges.rend(); ++range)
      open.context->ranges.push_back(range->name);
  }
  return open.context;
}

}  // namespace trireme
