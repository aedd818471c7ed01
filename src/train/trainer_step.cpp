// The path of a step.
#include "trainer.h"

#include "checkpoint.h"
#include "metrics_reader.h"
#include "profiler.h"
#include "run_clock.h"
#include "step_guard.h"
#include "trireme/base/fault.h"
#include "trireme/base/profile_range.h"
#include "trireme/watchdog/progress.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace trireme {

namespace {

/// Statistics of a step that one all-reduce sums over the ranks: fp64, by position.
enum StepStat { kSquare, kLossSum, kDenominator, kStopVotes, kSaveReady, kSaveClock, kSamples, kNumStats };

/// The results that the host reads. `saturated`: ShardedUnits::end_step().
at::Tensor step_results(const at::Tensor& stats, const at::Tensor& loss, const at::Tensor& grad_norm,
                        const StepVerdict& verdict, const at::Tensor& saturated, const at::Tensor& loss_scale) {
  static_assert(kSaveReady - kStopVotes == kReady - kStop && kSaveClock - kStopVotes == kClock - kStop &&
                kSamples - kStopVotes == kSampleCount - kStop);
  at::Tensor results = at::zeros({kNumResults}, stats.options());
  results[kLoss].copy_(loss);
  results[kGradNorm].copy_(grad_norm);
  results[kNonfinite].copy_(verdict.nonfinite);
  if (verdict.spiked.defined()) results[kSpiked].copy_(verdict.spiked);
  results.narrow(0, kStop, 4).copy_(stats.narrow(0, kStopVotes, 4));
  if (saturated.defined()) results[kSaturated].copy_(saturated);
  results[kLossScale].copy_(loss_scale);
  return results;
}

}  // namespace

void Trainer::train_step(int64_t step) {
  begin_progress_step(step + 1);
  const StepBatch batch = next_batch(step);
  fault_point("step", comm_.rank(), step + 1);
  units_->begin_step();
  const at::Tensor loss_sum = forward_backward(batch);
  fault_point("reduce", comm_.rank(), step + 1);

  // One all-reduce: squared gradient norm, loss, its denominator, votes to stop and to save.
  at::NoGradGuard no_grad;
  const at::Tensor stats = reduce_statistics(loss_sum, batch);
  const at::Tensor denominator = stats[kDenominator].clamp_min(1e-30);
  const at::Tensor unscale = task_.nominal_denominator() / (denominator * guard_->loss_scale());
  const at::Tensor grad_norm = stats[kSquare].sqrt() * unscale;
  const at::Tensor loss = stats[kLossSum] / denominator;
  const StepVerdict verdict = guard_->judge(loss, grad_norm, /*previous_inspected=*/progress_.reported == step);
  const at::Tensor multiplier = gradient_multiplier(unscale, grad_norm);

  const ProgressSection section("optimizer");
  const ProfileRange range("optimizer");
  const double lr = step_learning_rate(step);
  optimizer_->step(lr, multiplier, verdict.skip);
  units_->clear_gradients();
  guard_->update_loss_scale(verdict);
  const at::Tensor saturated = units_->end_step();
  units_->weights_changed();

  in_flight_->push(step + 1, lr, step_results(stats, loss, grad_norm, verdict, saturated, guard_->loss_scale()),
                   *clock_);
  progress_.completed = step + 1;
}

StepBatch Trainer::next_batch(int64_t step) {
  StepBatch batch = [&] {
    const ProgressSection section("data");
    const ProfileRange range("data");
    fault_point("data", comm_.rank(), step + 1);
    return task_.batch(step);
  }();
  if (step + 1 < config_.train.max_steps) task_.prefetch(step + 1);
  return batch;
}

at::Tensor Trainer::forward_backward(const StepBatch& batch) {
  if (batch.counts.defined() && comm_.size() > 1) comm_.all_reduce(batch.counts)->wait();
  // Gradients are reduced over ranks during the last micro-batch's backward.
  const at::Tensor scale = guard_->loss_scale() / task_.nominal_denominator();
  at::Tensor loss_sum = at::zeros({}, scale.options().dtype(at::kDouble));
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    units_->begin_micro_batch(/*last=*/i + 1 == batch.micro_batches.size());
    at::Tensor loss;
    {
      const ProgressSection section("forward");
      const ProfileRange range("forward");
      loss = task_.loss(*units_, *batch.micro_batches[i], plan_.recompute, /*train=*/true);
    }
    const ProgressSection section("backward");
    const ProfileRange range("backward");
    (loss * scale).backward();
    loss_sum.add_(loss.detach());
  }
  const ProgressSection section("backward");
  const ProfileRange range("finish_backward");
  units_->finish_backward();
  return loss_sum;
}

at::Tensor Trainer::reduce_statistics(const at::Tensor& loss_sum, const StepBatch& batch) {
  const at::Device device = world_.device();
  at::Tensor host = at::zeros({kNumStats}, at::TensorOptions().dtype(at::kDouble).pinned_memory(device.is_cuda()));
  host[kDenominator] = batch.denominator;
  host[kSamples] = batch.samples;
  host[kStopVotes] = asked_to_stop() ? 1.0 : 0.0;
  host[kSaveReady] = checkpoints_->ready();
  host[kSaveClock] = comm_.rank() == 0 && clock_->minutes_passed();
  at::Tensor stats = host.to(device, /*non_blocking=*/true);
  stats[kSquare].copy_(local_gradient_square(units_->trained()));
  if (const at::Tensor nonfinite = units_->nonfinite_operands(); nonfinite.defined()) stats[kSquare].add_(nonfinite);
  stats[kLossSum].copy_(loss_sum);
  if (comm_.size() > 1) comm_.all_reduce(stats)->wait();
  return stats;
}

at::Tensor Trainer::gradient_multiplier(const at::Tensor& unscale, const at::Tensor& grad_norm) const {
  if (config_.optimizer.grad_clip <= 0 || clips_locally()) return unscale.to(at::kFloat);
  return (unscale * (config_.optimizer.grad_clip / (grad_norm + 1e-6)).clamp_max(1.0)).to(at::kFloat);
}

double Trainer::step_learning_rate(int64_t step) const {
  int64_t skipped = guard_->steps_skipped();
  // Waiting for the step before costs nothing: this one's forward and backward are queued behind it.
  if (guard_->may_skip()) skipped += in_flight_->skipped();
  return learning_rate(config_.schedule, config_.optimizer.lr, config_.train.max_steps, step - skipped);
}

bool Trainer::clips_locally() const {
  return config_.optimizer.clip == OptimizerSection::Clip::kLocal && config_.optimizer.grad_clip > 0 &&
         comm_.size() > 1;
}

at::Tensor Trainer::local_clip(const at::Tensor& square) const {
  // A rank's part of the loss is its mean divided by the number of ranks; what is clipped is the norm of its own mean.
  const at::Tensor norm = square.sqrt() * (task_.nominal_denominator() * grid_.world.size) / guard_->loss_scale();
  const at::Tensor factor = (config_.optimizer.grad_clip / (norm + 1e-6)).clamp_max(1.0);
  return at::where(factor.isfinite(), factor, 1.0).to(at::kFloat);
}

void Trainer::profiled_step() {
  const int64_t step = progress_.completed + 1;
  if (profiler_->begins_at(step)) {
    flush_metrics();
    clock_->start_step();
  }
  profiler_->before_step(step);
  train_step(progress_.completed);
  if (!profiler_->ends_after(step)) return;
  flush_metrics();
  profiler_->after_step(step);
  comm_.barrier();  // the time in which ranks write their traces belongs to no step
  clock_->start_step();
}

}  // namespace trireme
