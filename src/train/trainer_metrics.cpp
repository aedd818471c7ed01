// What is read back of a step, one step late, and what is said of it.
#include "trireme/train/trainer.h"

#include "checkpoint.h"
#include "straggler.h"
#include "trainer_results.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/watchdog/progress.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme {

void Trainer::collect_metrics() {
  const PendingMetrics pending = std::move(pending_.front());
  pending_.pop_front();
  double step_time;
  if (pending.done) {
    // On a GPU the host runs ahead: the time between the ends of two steps is the device's to tell.
    pending.done->synchronize();
    step_time = step_begin_->elapsedTime(*pending.done) / 1000;
    step_begin_ = pending.done;
  } else {
    step_time = pending.finished - step_begin_time_;
    step_begin_time_ = pending.finished;
  }
  const double* values = pending.values.const_data_ptr<double>();
  training_seconds_ += step_time;
  block_seconds_ += step_time;
  ++block_steps_;
  ++timed_steps_;
  reported_ = pending.step;
  stop_agreed_ = stop_agreed_ || values[kStop] > 0;
  save_by_clock_ = save_by_clock_ || values[kClock] > 0;
  checkpoints_->advance_if_ready(pending.step, completed_, values[kReady]);
  last_loss_ = values[kLoss];

  TrainMetrics metrics;
  metrics.step = pending.step;
  metrics.max_steps = config_.train.max_steps;
  const auto rows = static_cast<double>(config_.batch.global_batch_size);
  samples_ += std::llround(values[kSampleCount]);
  metrics.samples = samples_;
  metrics.tokens = pending.step * config_.batch.global_batch_size * config_.data.seq_length;
  metrics.loss = values[kLoss];
  metrics.grad_norm = values[kGradNorm];
  metrics.lr = pending.lr;
  metrics.step_time_s = step_time;
  metrics.samples_per_s = values[kSampleCount] / step_time;
  metrics.tokens_per_s = rows / step_time * static_cast<double>(config_.data.seq_length);
  metrics.memory_gib = static_cast<double>(peak_memory(device_) + units_->memory_outside_allocator()) / (1 << 30);
  if (device_info_.peak_flops)
    metrics.mfu = task_.flops_per_sample() * (rows / step_time) / (*device_info_.peak_flops * comm_.size());
  if (comm_.rank() == 0) report(metrics);

  if (values[kSkipped] > 0) {
    ++steps_skipped_;
    handle_nonfinite(pending.step, values[kLoss], values[kGradNorm]);
    (void)loss_window_.add(std::numeric_limits<double>::quiet_NaN());
    return;
  }
  consecutive_skips_ = 0;
  if (values[kSaturated] > 0) report_saturation(pending.step, std::llround(values[kSaturated]));
  const bool skipped = values[kSpiked] > 0;
  if (skipped) ++steps_skipped_;
  const auto z = loss_window_.add(metrics.loss);
  TRIREME_CHECK(z || !skipped, "step ", pending.step, ": the device skipped a loss of ", metrics.loss,
                " that is no spike");
  if (z) {
    log_info(
        fmt::format("warning: step {}: the loss {:.4f} is a spike, {:.1f} standard deviations above the mean of the "
                    "steps before (samples "
                    "{} to {} of the order){}",
                    metrics.step, metrics.loss, *z, metrics.samples - config_.batch.global_batch_size,
                    metrics.samples - 1, skipped ? "; the step is skipped" : ""));
    if (metrics_)
      metrics_->write_run(nlohmann::json{
          {"event", "spike"}, {"step", metrics.step}, {"loss", metrics.loss}, {"z", *z}, {"skipped", skipped}}
                              .dump());
  }
}

void Trainer::report_saturation(int64_t step, int64_t tensors) {
  // Now and then is in the nature of scales that follow: said the first time, then ever more rarely.
  saturated_tensors_ += tensors;
  if (++saturated_steps_ != next_saturation_report_) return;
  next_saturation_report_ *= 10;
  log_info(
      fmt::format("warning: step {}: {} of {} FP8 tensors had values beyond their scale, which were saturated ({} such "
                  "steps so far in this process, {} tensors); scales follow with the next step",
                  step, tensors, units_->scaled_tensors(), saturated_steps_, saturated_tensors_));
}

void Trainer::flush_metrics() {
  while (!pending_.empty()) collect_metrics();
}

void Trainer::report(const TrainMetrics& metrics) {
  metrics_->write(metrics);
  const bool due =
      metrics.step % config_.logging.every_steps == 0 || metrics.step == 1 || metrics.step == metrics.max_steps;
  if (due) {
    const double per_step = training_seconds_ / static_cast<double>(timed_steps_);
    const double eta = per_step * static_cast<double>(metrics.max_steps - metrics.step);
    console_.line(console_line(metrics, eta));
  }
  console_.status(metrics.step, metrics.max_steps);
  mlperf_.train_loss(metrics);
}

void Trainer::report_stragglers() {
  const int64_t steps = completed_ - std::max(first_step_, sections_taken_);
  sections_taken_ = completed_;
  const auto all = comm_.gather_host(encode_section_times(take_section_times()));
  if (comm_.size() == 1 || comm_.rank() != 0 || timed_steps_ == 0) return;
  for (const std::string& line :
       find_stragglers(all, world_.hosts(), steps, training_seconds_ / static_cast<double>(timed_steps_)))
    log_info("warning: " + line);
}

}  // namespace trireme
