// The path of a step.
#include "trireme/train/trainer.h"

#include "checkpoint.h"
#include "profile.h"
#include "trainer_results.h"
#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/train/signals.h"
#include "trireme/watchdog/progress.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

namespace trireme {

namespace {

constexpr int64_t kLossScaleGrowthInterval = 2000;
constexpr double kLargestLossScale = 16777216.0;

}  // namespace

void Trainer::train_step(int64_t step) {
  begin_progress_step(step + 1);
  const StepBatch batch = [&] {
    const ProgressSection section("data");
    fault_point("data", comm_.rank(), step + 1);
    return task_.batch(step);
  }();
  if (step + 1 < config_.train.max_steps) task_.prefetch(step + 1);
  fault_point("step", comm_.rank(), step + 1);
  units_->begin_step();
  const at::Tensor loss_sum = forward_backward(batch);
  fault_point("reduce", comm_.rank(), step + 1);

  // One all-reduce: squared gradient norm, loss, its denominator, and whether a rank was asked to stop.
  at::NoGradGuard no_grad;
  const at::Tensor stats = reduce_statistics(loss_sum, batch);
  const at::Tensor denominator = stats[kDenominator].clamp_min(1e-30);
  const at::Tensor unscale = task_.nominal_denominator() / (denominator * loss_scale_);
  const at::Tensor grad_norm = stats[kSquare].sqrt() * unscale;
  const at::Tensor loss = stats[kLossSum] / denominator;
  // A step with numbers that are not finite touches no weight, although the host learns of them a step later. Where
  // that ends the run, the step already under way changes nothing either.
  const at::Tensor bad = grad_norm.isfinite().logical_and(loss.isfinite()).logical_not().to(at::kFloat);
  if (!skip_nonfinite_) halted_.copy_(at::maximum(halted_, bad));
  const at::Tensor overflow = skip_nonfinite_ ? bad : halted_;
  at::Tensor skip = overflow, results = at::zeros({kNumResults}, stats.options());
  if (config_.train.on_spike == "skip") {
    if (const auto limit = loss_window_.limit(/*last_added=*/reported_ == step)) {
      const at::Tensor spiked = loss.gt(*limit).to(at::kFloat);
      results[kSpiked].copy_(spiked);
      skip = at::maximum(overflow, spiked);
    }
  }
  at::Tensor multiplier = unscale;
  if (config_.optimizer.grad_clip > 0 && !clips_locally())
    multiplier = unscale * (config_.optimizer.grad_clip / (grad_norm + 1e-6)).clamp_max(1.0);

  // The optimizer writes nothing when `skip` is set.
  const ProgressSection section("optimizer");
  const double lr =
      learning_rate(config_.schedule, config_.optimizer.lr, config_.train.max_steps, step - steps_skipped());
  optimizer_->step(lr, multiplier.to(at::kFloat), skip);
  units_->invalidate_trained();
  units_->clear_gradients();
  if (compute_dtype_ == at::kHalf) {
    at::_amp_update_scale_(loss_scale_, growth_tracker_, overflow, 2.0, 0.5, kLossScaleGrowthInterval);
    loss_scale_.clamp_max_(kLargestLossScale);
  }

  if (const at::Tensor number = units_->end_step(); number.defined()) results[kSaturated].copy_(number);
  results[kLoss].copy_(loss);
  results[kGradNorm].copy_(grad_norm);
  results[kSkipped].copy_(overflow);
  results.narrow(0, kStop, 4).copy_(stats.narrow(0, kSignal, 4));
  PendingMetrics pending{step + 1, lr, results, nullptr, 0};
  if (device_.is_cuda()) {
    pending.values = at::empty({kNumResults}, results.options().device(at::kCPU).pinned_memory(true));
    pending.values.copy_(results, /*non_blocking=*/true);
    pending.done = record_event();
  }
  pending.finished = steady_seconds();
  pending_.push_back(std::move(pending));
  completed_ = step + 1;
}

at::Tensor Trainer::forward_backward(const StepBatch& batch) {
  if (batch.counts.defined() && comm_.size() > 1) comm_.all_reduce(batch.counts)->wait();
  // Gradients are reduced over ranks during the last micro-batch's backward.
  const at::Tensor scale = loss_scale_ / task_.nominal_denominator();
  at::Tensor loss_sum = at::zeros({}, scale.options().dtype(at::kDouble));
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    units_->begin_micro_batch(/*last=*/i + 1 == batch.micro_batches.size());
    at::Tensor loss;
    {
      const ProgressSection section("forward");
      loss = task_.loss(*units_, *batch.micro_batches[i], plan_.recompute, /*train=*/true);
    }
    const ProgressSection section("backward");
    (loss * scale).backward();
    loss_sum.add_(loss.detach());
  }
  const ProgressSection section("backward");
  units_->finish_backward();
  return loss_sum;
}

int64_t Trainer::steps_skipped() const {
  int64_t count = steps_skipped_;
  if (!skip_nonfinite_ && config_.train.on_spike != "skip") return count;
  // The step before this one is still under way. Waiting for it costs nothing: this one's forward and backward are
  // queued behind it.
  for (const PendingMetrics& pending : pending_) {
    if (pending.done) pending.done->synchronize();
    const double* values = pending.values.const_data_ptr<double>();
    if (values[kSkipped] > 0 || values[kSpiked] > 0) ++count;
  }
  return count;
}

bool Trainer::clips_locally() const {
  return config_.optimizer.clip == "local" && config_.optimizer.grad_clip > 0 && comm_.size() > 1;
}

at::Tensor Trainer::local_clip(const at::Tensor& square) const {
  // The rank's part of the loss is its mean divided by the ranks: the norm meant is that of its own mean.
  const at::Tensor norm = square.sqrt() * (task_.nominal_denominator() * comm_.size()) / loss_scale_;
  const at::Tensor factor = (config_.optimizer.grad_clip / (norm + 1e-6)).clamp_max(1.0);
  return at::where(factor.isfinite(), factor, 1.0).to(at::kFloat);
}

at::Tensor Trainer::reduce_statistics(const at::Tensor& loss_sum, const StepBatch& batch) {
  at::Tensor host = at::zeros({kNumReduced}, at::TensorOptions().dtype(at::kDouble).pinned_memory(device_.is_cuda()));
  host[kDenominator] = batch.denominator;
  host[kSamples] = batch.samples;
  host[kSignal] = stop_signal() != 0 ? 1.0 : 0.0;
  host[kSaveReady] = checkpoints_->ready();
  host[kSaveClock] = comm_.rank() == 0 && config_.output.save_every_minutes &&
                     steady_seconds() - last_save_time_ >= 60 * *config_.output.save_every_minutes;
  at::Tensor stats = host.to(device_, /*non_blocking=*/true);
  stats[kSquare].copy_(local_gradient_square(units_->trained()));
  stats[kLossSum].copy_(loss_sum);
  if (comm_.size() > 1) comm_.all_reduce(stats)->wait();
  return stats;
}

void Trainer::profiled_step() {
  // Every rank records, so that none waits for another's profiler; rank 0 writes.
  flush_metrics();
  StepProfile profile(device_.is_cuda());
  start_clock();
  train_step(completed_);
  flush_metrics();
  if (comm_.rank() != 0) return;
  const auto trace = directory_.path() / "profile" / fmt::format("step-{}.json", completed_);
  for (const std::string& line : split(profile.finish(trace), '\n'))
    if (!line.empty()) log_info(line);
  log_info(fmt::format("timeline of step {}: {}", completed_, trace.string()));
}

std::shared_ptr<c10::Event> Trainer::record_event() const {
  auto event = std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

void Trainer::start_clock() {
  if (device_.is_cuda()) step_begin_ = record_event();
  step_begin_time_ = steady_seconds();
}

}  // namespace trireme
