#pragma once
// Private to train/: protects the weights from bad steps: the loss scale of fp16, and the handling of steps with
// non-finite numbers, loss spikes and saturated FP8 values.

#include "steps_in_flight.h"
#include "trireme/config/batch_sizes.h"
#include "trireme/config/config.h"
#include "trireme/nn/trained_shard.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// Detects loss spikes.
///
/// The z-score of a loss uses the mean and standard deviation of kSize finite losses before it. A spike does not enter
/// the window, so a second spike is measured against the same losses. kPatience spikes in a row are a new level: the
/// window starts again with them.
///
/// The loss just before is not in the window, so that the device's decision by limit(), made before the host has read
/// that loss, is the same as the host's by add().
class LossWindow {
 public:
  static constexpr size_t kSize = 128, kLeast = 16;
  static constexpr double kSpike = 6;
  static constexpr int kPatience = 8;

  /// Returns the z-score if it exceeds kSpike and at least kLeast losses are known. Ignores losses that are not finite.
  std::optional<double> add(double loss);

  /// The loss above which the current step is a spike. `last_added`: add() has seen the step before it.
  std::optional<double> limit(bool last_added) const;

  /// For checkpoints: the losses, oldest first, then the number n of spikes in a row, or -1 - n if the loss added last
  /// is no spike.
  std::vector<double> state() const;
  void restore(const std::vector<double>& state);

 private:
  void settle();

  std::deque<double> losses_;
  std::optional<double> newest_;  // enters the window after the next loss has been measured
  int in_a_row_ = 0;
};

/// The guard's state in checkpoints beside the loss scale.
struct GuardState {
  int consecutive_skips = 0;        // steps with non-finite numbers since the last finite step
  int64_t skipped_steps = 0;        // of all steps; the schedule does not count them, as the optimizer does not
  std::vector<double> loss_window;  // LossWindow::state()
  bool operator==(const GuardState&) const = default;
};

/// The device's checks of a step: fp32 scalars on the device, 1 for yes.
struct StepVerdict {
  /// The loss or gradient norm is not finite. If such a step ends the run, stays 1 in the steps after it.
  at::Tensor nonfinite;
  at::Tensor spiked;  // the loss is a spike; undefined if spikes are not skipped or too few losses are known
  at::Tensor skip;    // nonfinite or spiked: the optimizer must change nothing
};

/// judge() and update_loss_scale() only queue device work. inspect() sees every step once, in order.
class StepGuard {
 public:
  static constexpr double kInitialLossScale = 65536;
  static constexpr double kLargestLossScale = 16777216;
  static constexpr int64_t kGrowthInterval = 2000;  // steps without overflow after which the loss scale doubles
  static constexpr int kMaxConsecutiveSkips = 20;   // one more step with non-finite numbers ends the run

  /// Says which parameters of which ranks have non-finite gradients in step `step`, as a part of a sentence.
  /// Collective.
  using FindNonfinite = std::function<std::string(int64_t step)>;

  /// fp16 has a dynamic loss scale and skips steps whose gradients overflow; others as train.on_nonfinite says.
  /// `event`: takes one JSON object for metrics.jsonl.
  StepGuard(const Config& config, at::ScalarType compute_dtype, at::Device device,
            std::function<void(const std::string&)> event);

  bool fp16() const { return fp16_; }
  /// fp32 scalar on the device: factor of the loss before backward; 1 unless fp16.
  const at::Tensor& loss_scale() const { return loss_scale_; }

  /// `loss` and `grad_norm`: fp64 scalars on the device, over all ranks, unscaled. `previous_inspected`: inspect() has
  /// seen the step before this one.
  StepVerdict judge(const at::Tensor& loss, const at::Tensor& grad_norm, bool previous_inspected);
  /// fp16: halves the loss scale after an overflow, doubles it after kGrowthInterval steps without one.
  void update_loss_scale(const StepVerdict& verdict);

  /// Reports non-finite numbers, spikes and saturation of a step. `scaled_tensors`: number of FP8 tensors. Returns why
  /// the run must end, and what to try; nullopt: it goes on. Collective if it calls `find_nonfinite`: for non-finite
  /// numbers other than an overflow of fp16.
  [[nodiscard]] std::optional<std::string> inspect(const StepRecord& record, int64_t scaled_tensors,
                                                   const FindNonfinite& find_nonfinite);

  /// Whether this run may skip a step and go on.
  bool may_skip() const { return skip_nonfinite_ || skip_spikes_; }
  /// GuardState::skipped_steps.
  int64_t steps_skipped() const { return steps_skipped_; }
  int consecutive_skips() const { return consecutive_skips_; }

  /// For checkpoints: the loss scale with its growth tracker, and the rest.
  std::vector<StateTensor> tensors() const;
  GuardState state() const { return {consecutive_skips_, steps_skipped_, loss_window_.state()}; }
  void restore(const GuardState& state);

 private:
  std::optional<std::string> inspect_nonfinite(const StepRecord& record, const FindNonfinite& find_nonfinite);
  void report_saturation(const StepRecord& record, int64_t scaled_tensors);
  void report_spike(const StepRecord& record, double z) const;

  BatchSizes batches_;
  bool fp16_, skip_nonfinite_, skip_spikes_;
  std::function<void(const std::string&)> event_;
  at::Tensor loss_scale_;      // fp32 scalar on the device
  at::Tensor growth_tracker_;  // int32 scalar on the device: steps since the loss scale changed
  at::Tensor halted_;          // fp32 scalar on the device: 1 after a step with non-finite numbers that ends the run
  LossWindow loss_window_;
  int consecutive_skips_ = 0;
  int64_t steps_skipped_ = 0;
  int64_t saturated_steps_ = 0, saturated_tensors_ = 0, next_saturation_report_ = 1;  // of this process
};

}  // namespace trireme
