#include "range_recorder.h"

#include <ATen/record_function.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <atomic>
#include <mutex>
#include <set>
#include <vector>

#ifdef TRIREME_WITH_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace trireme {

namespace {

struct OpenRange {
  const std::string* name;                         // lives until the process ends
  std::unique_ptr<at::RecordFunction> annotation;  // null: the range does not reach the profilers
};

/// Of one thread, innermost last.
std::vector<OpenRange>& open_ranges() {
  thread_local std::vector<OpenRange> open;
  return open;
}

const std::string* lasting_name(const std::string& name) {
  static auto* names = new std::set<std::string>;
  static auto* mutex = new std::mutex;
  const std::lock_guard lock(*mutex);
  return &*names->insert(name).first;
}

/// LibTorch asks it for the stack of an allocation, and later for the texts of the frames.
class RangeFrames final : public torch::CapturedTraceback::Python {
  using Frame = torch::CapturedTraceback::PyFrame;
  bool canGather() override { return true; }
  std::vector<Frame> gather() override {
    std::vector<Frame> frames;
    for (auto range = open_ranges().rbegin(); range != open_ranges().rend(); ++range)
      frames.push_back({const_cast<std::string*>(range->name), 0});
    return frames;
  }
  void appendSymbolized(const std::vector<Frame>& frames, torch::SymbolizedTracebacks& result) override {
    for (const Frame& frame : frames) {
      result.tracebacks.push_back({result.all_frames.size()});
      result.all_frames.push_back({"trireme", *static_cast<const std::string*>(frame.code), 0});
    }
  }
  void release(std::vector<Frame>&) override {}
  int traverse(std::vector<Frame>&, torch::CapturedTraceback::visitproc, void*) override { return 0; }
  int clear(std::vector<Frame>&) override { return 0; }
};

std::atomic<bool> annotates = false;

}  // namespace

RangeRecorder& RangeRecorder::instance() {
  static auto* recorder = new RangeRecorder;  // never destroyed: ranges of other threads may end later
  return *recorder;
}

void RangeRecorder::annotate(bool on) { annotates = on; }

void RangeRecorder::begin(const std::string& annotation, [[maybe_unused]] const std::string& nvtx) {
  OpenRange range{lasting_name(annotation), nullptr};
  if (annotates) {
#ifdef TRIREME_WITH_CUDA
    nvtxRangePushA(nvtx.c_str());
#endif
    range.annotation = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    if (range.annotation->isActive()) range.annotation->before(annotation);
  }
  open_ranges().push_back(std::move(range));
}

void RangeRecorder::end() {
  std::vector<OpenRange>& open = open_ranges();
  if (open.empty()) return;
  [[maybe_unused]] const bool annotated = open.back().annotation != nullptr;
  open.pop_back();
#ifdef TRIREME_WITH_CUDA
  if (annotated) nvtxRangePop();
#endif
}

std::shared_ptr<c10::GatheredContext> open_range_context() {
  [[maybe_unused]] static const bool added = (torch::CapturedTraceback::addPythonUnwinder(new RangeFrames), true);
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
}

}  // namespace trireme
