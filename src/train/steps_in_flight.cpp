#include "steps_in_flight.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace trireme {

namespace {

void wait_for(const StepRecord& record) {
  if (record.end.event) record.end.event->synchronize();
}

}  // namespace

void StepsInFlight::push(int64_t step, double lr, double row_flops, const at::Tensor& results, const RunClock& clock) {
  at::Tensor values = results;
  if (results.is_cuda()) {
    values = at::empty(results.sizes(), results.options().device(at::kCPU).pinned_memory(true));
    values.copy_(results, /*non_blocking=*/true);
  }
  records_.push_back({step, lr, row_flops, clock.mark(), values});
}

StepRecord StepsInFlight::pop() {
  StepRecord record = std::move(records_.front());
  records_.pop_front();
  wait_for(record);
  return record;
}

int64_t StepsInFlight::skipped() const {
  return std::count_if(records_.begin(), records_.end(), [](const StepRecord& record) {
    wait_for(record);
    return record.skipped();
  });
}

bool StepsInFlight::updated_after(int64_t step) const {
  return std::any_of(records_.begin(), records_.end(), [step](const StepRecord& record) {
    wait_for(record);
    return record.step > step && !record.skipped();
  });
}

}  // namespace trireme
