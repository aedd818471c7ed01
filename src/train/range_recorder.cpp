#include "range_recorder.h"

#include <ATen/record_function.h>

#include <memory>
#include <vector>

#ifdef TRIREME_WITH_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace trireme {

namespace {

/// The open annotations of this thread, innermost last.
std::vector<std::unique_ptr<at::RecordFunction>>& open_annotations() {
  thread_local std::vector<std::unique_ptr<at::RecordFunction>> open;
  return open;
}

}  // namespace

RangeRecorder& RangeRecorder::instance() {
  static auto* recorder = new RangeRecorder;  // never destroyed: ranges of other threads may end later
  return *recorder;
}

void RangeRecorder::begin(const std::string& annotation, [[maybe_unused]] const std::string& nvtx) {
#ifdef TRIREME_WITH_CUDA
  nvtxRangePushA(nvtx.c_str());
#endif
  auto record = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (record->isActive()) record->before(annotation);
  open_annotations().push_back(std::move(record));
}

void RangeRecorder::end() {
  if (!open_annotations().empty()) open_annotations().pop_back();
#ifdef TRIREME_WITH_CUDA
  nvtxRangePop();
#endif
}

}  // namespace trireme
