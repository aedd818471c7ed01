#include "step_guard.h"

#include "trireme/base/error.h"
#include "trireme/base/log.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme {

namespace {

struct Spread {
  double mean = 0, deviation = 0;
};

template <class Range>
Spread spread_of(const Range& losses) {
  Spread spread;
  const auto count = static_cast<double>(losses.size());
  for (const double value : losses) spread.mean += value / count;
  double square = 0;
  for (const double value : losses) square += (value - spread.mean) * (value - spread.mean) / count;
  // At least 0.5 % of the mean: where losses hardly vary, small changes would otherwise be spikes.
  spread.deviation = std::max({std::sqrt(square), 0.005 * std::abs(spread.mean), 1e-12});
  return spread;
}

}  // namespace

std::optional<double> LossWindow::limit(bool last_added) const {
  LossWindow window = *this;
  if (!last_added) window.settle();
  if (window.losses_.size() < kLeast) return std::nullopt;
  const Spread spread = spread_of(window.losses_);
  return spread.mean + kSpike * spread.deviation;
}

void LossWindow::settle() {
  if (in_a_row_ >= kPatience - 1) {
    losses_.clear();
    in_a_row_ = 0;
  }
  if (newest_) losses_.push_back(*newest_);
  newest_.reset();
  if (losses_.size() > kSize) losses_.pop_front();
}

std::optional<double> LossWindow::add(double loss) {
  const std::optional<double> highest = limit(/*last_added=*/true);
  std::optional<double> spike;
  if (std::isfinite(loss) && highest && loss > *highest) {
    const Spread spread = spread_of(losses_);
    spike = (loss - spread.mean) / spread.deviation;
  }
  settle();
  if (!std::isfinite(loss)) return std::nullopt;
  if (spike && ++in_a_row_ < kPatience - 1) return spike;
  if (!spike) in_a_row_ = 0;
  newest_ = loss;
  return spike;
}

std::vector<double> LossWindow::state() const {
  std::vector<double> state(losses_.begin(), losses_.end());
  if (newest_) state.push_back(*newest_);
  // After a loss that was not finite, or a spike, the last of these losses is older than the step before.
  state.push_back(newest_ || losses_.empty() ? in_a_row_ : -1 - in_a_row_);
  return state;
}

void LossWindow::restore(const std::vector<double>& state) {
  losses_.clear();
  newest_.reset();
  in_a_row_ = 0;
  if (state.empty()) return;
  losses_.assign(state.begin(), state.end() - 1);
  in_a_row_ = static_cast<int>(state.back());
  const bool settled = in_a_row_ < 0;
  if (settled) in_a_row_ = -1 - in_a_row_;
  if (settled || losses_.empty() || (in_a_row_ > 0 && in_a_row_ < kPatience - 1)) return;
  // The last loss was no spike, or the one that starts a new window.
  newest_ = losses_.back();
  losses_.pop_back();
}

StepGuard::StepGuard(const Config& config, at::ScalarType compute_dtype, at::Device device,
                     std::function<void(const std::string&)> event)
    : batches_(config.batch),
      fp16_(compute_dtype == at::kHalf),
      skip_nonfinite_(config.train.on_nonfinite == TrainSection::OnNonfinite::kSkip || fp16_),
      skip_spikes_(config.train.on_spike == TrainSection::OnSpike::kSkip),
      event_(std::move(event)) {
  const auto scalar = at::TensorOptions().dtype(at::kFloat).device(device);
  loss_scale_ = at::full({}, fp16_ ? config.precision.loss_scale.value_or(kInitialLossScale) : 1.0, scalar);
  growth_tracker_ = at::zeros({}, scalar.dtype(at::kInt));
  halted_ = at::zeros({}, scalar);
}

StepVerdict StepGuard::judge(const at::Tensor& loss, const at::Tensor& grad_norm, bool previous_inspected) {
  // The host learns of non-finite numbers a step late, when the next step is already queued. Where they end the run,
  // halted_ makes the optimizer skip that step, too.
  // 0 times a number that is not finite is NaN, which differs from 0: half as many kernels as isfinite() launches.
  const at::Tensor bad = (grad_norm * 0 + loss * 0).ne(0).to(at::kFloat);
  if (!skip_nonfinite_) halted_.copy_(at::maximum(halted_, bad));
  const at::Tensor nonfinite = skip_nonfinite_ ? bad : halted_;
  const auto limit = skip_spikes_ ? loss_window_.limit(/*last_added=*/previous_inspected) : std::nullopt;
  if (!limit) return {nonfinite, {}, nonfinite};
  const at::Tensor spiked = loss.gt(*limit).to(at::kFloat);
  return {nonfinite, spiked, at::maximum(nonfinite, spiked)};
}

void StepGuard::update_loss_scale(const StepVerdict& verdict) {
  if (!fp16_) return;
  at::_amp_update_scale_(loss_scale_, growth_tracker_, verdict.nonfinite, 2.0, 0.5, kGrowthInterval);
  loss_scale_.clamp_max_(kLargestLossScale);
}

std::optional<std::string> StepGuard::inspect(const StepRecord& record, int64_t scaled_tensors,
                                              const FindNonfinite& find_nonfinite) {
  if (record[kNonfinite] > 0) {
    ++steps_skipped_;
    ++consecutive_skips_;
    if (auto reason = inspect_nonfinite(record, find_nonfinite)) return reason;
    (void)loss_window_.add(std::numeric_limits<double>::quiet_NaN());
    return std::nullopt;
  }
  consecutive_skips_ = 0;
  if (record[kSaturated] > 0) report_saturation(record, scaled_tensors);
  if (record[kSpiked] > 0) ++steps_skipped_;
  const auto z = loss_window_.add(record.has_loss() ? record[kLoss] : std::numeric_limits<double>::quiet_NaN());
  TRIREME_CHECK(z || record[kSpiked] == 0, "step ", record.step, ": the device skipped a loss of ", record[kLoss],
                " that is no spike");
  if (z) report_spike(record, *z);
  return std::nullopt;
}

std::optional<std::string> StepGuard::inspect_nonfinite(const StepRecord& record, const FindNonfinite& find_nonfinite) {
  const bool goes_on = skip_nonfinite_ && consecutive_skips_ <= kMaxConsecutiveSkips;
  if (fp16_ && goes_on) {
    log_info(fmt::format("step {}: gradients overflowed in fp16, the step was skipped and the loss scale halved",
                         record.step));
    return std::nullopt;
  }
  const std::string what = fmt::format("step {}: the loss is {} and the gradient norm {}; {}; no parameter was changed",
                                       record.step, record[kLoss], record[kGradNorm], find_nonfinite(record.step));
  if (goes_on) {
    log_run_warn(
        fmt::format("{}, the step is skipped ({} of {} in a row)", what, consecutive_skips_, kMaxConsecutiveSkips));
    return std::nullopt;
  }
  return fmt::format(
      "{}{}. Lower optimizer.lr, check the data around row {}, use precision.compute: fp32, or set "
      "train.on_nonfinite: skip",
      what, skip_nonfinite_ ? fmt::format(" ({} steps in a row)", consecutive_skips_) : "",
      batches_.before(record.step - 1));
}

void StepGuard::report_saturation(const StepRecord& record, int64_t scaled_tensors) {
  // Delayed scales follow the values by a step, so that some saturation is normal: affected steps 1, 10, 100, … are
  // reported.
  const auto saturated = std::llround(record[kSaturated]);
  saturated_tensors_ += saturated;
  if (++saturated_steps_ != next_saturation_report_) return;
  next_saturation_report_ *= 10;
  log_run_warn(
      fmt::format("step {}: {} of {} FP8 tensors had values beyond their scale, which were saturated ({} such "
                  "steps so far in this process, {} tensors); scales follow with the next step",
                  record.step, saturated, scaled_tensors, saturated_steps_, saturated_tensors_));
}

void StepGuard::report_spike(const StepRecord& record, double z) const {
  log_run_warn(
      fmt::format("step {}: the loss {:.4f} is a spike, {:.1f} standard deviations above the mean of the steps before "
                  "(rows {} to {} of the order){}",
                  record.step, record[kLoss], z, batches_.before(record.step - 1), batches_.before(record.step) - 1,
                  record[kSpiked] > 0 ? "; the step is skipped" : ""));
  event_(nlohmann::json{
      {"event", "spike"}, {"step", record.step}, {"loss", record[kLoss]}, {"z", z}, {"skipped", record[kSpiked] > 0}}
             .dump());
}

std::vector<StateTensor> StepGuard::tensors() const {
  return {{StateKind::kLossScale, nullptr, loss_scale_}, {StateKind::kGrowthTracker, nullptr, growth_tracker_}};
}

void StepGuard::restore(const GuardState& state) {
  consecutive_skips_ = state.consecutive_skips;
  steps_skipped_ = state.skipped_steps;
  loss_window_.restore(state.loss_window);
}

}  // namespace trireme
