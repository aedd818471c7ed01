#include "metrics_reader.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace trireme {

namespace {

void wait_for(const StepRecord& record) {
  if (record.end.event) record.end.event->synchronize();
}

}  // namespace

void MetricsReader::push(int64_t step, double lr, const at::Tensor& results, const RunClock& clock) {
  at::Tensor values = results;
  if (results.is_cuda()) {
    values = at::empty({kNumResults}, results.options().device(at::kCPU).pinned_memory(true));
    values.copy_(results, /*non_blocking=*/true);
  }
  in_flight_.push_back({step, lr, clock.mark(), values});
}

StepRecord MetricsReader::pop() {
  StepRecord record = std::move(in_flight_.front());
  in_flight_.pop_front();
  wait_for(record);
  return record;
}

int64_t MetricsReader::skipped() const {
  return std::count_if(in_flight_.begin(), in_flight_.end(), [](const StepRecord& record) {
    wait_for(record);
    return record.skipped();
  });
}

bool MetricsReader::updated_after(int64_t step) const {
  return std::any_of(in_flight_.begin(), in_flight_.end(), [step](const StepRecord& record) {
    wait_for(record);
    return record.step > step && !record.skipped();
  });
}

}  // namespace trireme
