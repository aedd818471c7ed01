#pragma once
// Private to train/: the results of steps, and their way to the host.

#include "run_clock.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>

namespace trireme {

/// Positions in a step's results: fp64, the same on all ranks. kStop to kLossCount are sums over the ranks; only rank
/// 0 votes for kClock.
enum StepResult {
  kLoss,
  kGradNorm,
  kNonfinite,    // 1: the optimizer skipped the step because of non-finite numbers
  kSpiked,       // 1: it skipped the step as a loss spike
  kStop,         // ranks that were asked to stop
  kReady,        // ranks that have finished the phase of the save under way
  kClock,        // 1: output.save_every_minutes have passed
  kSampleCount,  // samples of the step
  kLossCount,    // what the loss is divided by; 0: no row of the step has a target
  kSaturated,    // FP8 tensors with values beyond their scale
  kLossScale,    // after the step; 1 but for fp16
  kNumResults    // here TaskFacts::metrics begin
};

/// A step whose results are on the host.
struct StepRecord {
  int64_t step = 0;  // from 1
  double lr = 0;
  double row_flops = 0;  // StepBatch::row_flops
  TimePoint end;         // of everything that the step queued
  at::Tensor values;     // fp64 [kNumResults + metrics], host memory
  /// NaN without a sign, which has no meaning.
  double operator[](StepResult which) const {
    const double value = values.const_data_ptr<double>()[which];
    return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
  }
  bool has_loss() const { return (*this)[kLossCount] > 0; }
  bool skipped() const { return (*this)[kNonfinite] > 0 || (*this)[kSpiked] > 0; }
};

/// The results of steps on their way from the device to the host, which reads them a step late. First in, first out.
class StepsInFlight {
 public:
  /// Queues the copy of a step's results (StepRecord::values, on its device) to the host; waits for nothing.
  void push(int64_t step, double lr, double row_flops, const at::Tensor& results, const RunClock& clock);
  size_t size() const { return records_.size(); }
  /// The oldest step; waits for its device work only.
  StepRecord pop();
  /// Number of steps in flight that the optimizer skipped; waits for all of them.
  int64_t skipped() const;
  /// Whether a step after `step` has changed the weights; waits for all steps in flight.
  bool updated_after(int64_t step) const;

 private:
  std::deque<StepRecord> records_;
};

}  // namespace trireme
