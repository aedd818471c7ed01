#include "backward_range.h"

#include "trireme/base/profile_range.h"

#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace trireme {

namespace {

/// Of the open range; null: none. It has no destructor, which could end a range after the thread's list of ranges.
thread_local RangeSink* open_sink = nullptr;

}  // namespace

void begin_backward_range(const std::string& unit) {
  if (!ranges_recorded()) [[likely]]
    return;
  end_backward_range();
  RangeSink* const sink = detail::range_sink.load(std::memory_order_acquire);
  if (sink == nullptr) return;
  // Before the range begins: the engine refuses callbacks outside of a backward.
  torch::autograd::Engine::get_default_engine().queue_callback(&end_backward_range);
  sink->begin(unit + " backward");
  open_sink = sink;
}

void end_backward_range() {
  if (RangeSink* const sink = std::exchange(open_sink, nullptr)) sink->end();
}

}  // namespace trireme
