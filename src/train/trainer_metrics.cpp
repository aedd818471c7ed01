// The results of a step, read one step late, and what is reported about them.
#include "trainer.h"

#include "checkpoint.h"
#include "collective_check.h"
#include "fms_report.h"
#include "metrics_reader.h"
#include "nonfinite.h"
#include "run_clock.h"
#include "run_summary.h"
#include "step_guard.h"
#include "stop_vote.h"
#include "tensorboard_log.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/time.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme {

void Trainer::collect_metrics() {
  const StepRecord record = in_flight_->pop();
  const double seconds = clock_->end_step(record.end);
  progress_.reported = record.step;
  progress_.samples += std::llround(record[kSampleCount]);
  progress_.last_loss = record[kLoss];
  stop_vote_->record(record[kStop] > 0);
  if (record[kClock] > 0) clock_->request_save();
  checkpoints_->advance_if_ready(record.step, progress_.completed, record[kReady]);
  if (comm_.rank() == 0) report(metrics_of(record, seconds));
  guard_numbers(record);
}

void Trainer::flush_metrics() {
  while (in_flight_->size() > 0) collect_metrics();
}

TrainMetrics Trainer::metrics_of(const StepRecord& record, double seconds) const {
  const BatchSizes& batches = clock_->batches();
  const auto rows = static_cast<double>(batches.of(record.step - 1));
  TrainMetrics metrics;
  metrics.step = record.step;
  metrics.max_steps = config_.train.max_steps;
  metrics.samples = progress_.samples;
  metrics.step_rows = batches.of(record.step - 1);
  metrics.rows = batches.before(record.step);
  metrics.epoch = metrics.rows / std::max<int64_t>(1, task_.facts().train_rows);
  metrics.skipped_steps = guard_->steps_skipped() + (record.skipped() ? 1 : 0);
  metrics.loss_scale = record[kLossScale];
  metrics.tokens = metrics.rows * config_.data.seq_length;
  if (batches.ramps()) metrics.global_batch_size = metrics.step_rows;
  metrics.loss = record[kLoss];
  metrics.grad_norm = record[kGradNorm];
  metrics.lr = record.lr;
  metrics.step_time_s = seconds;
  metrics.samples_per_s = record[kSampleCount] / seconds;
  metrics.tokens_per_s = rows / seconds * static_cast<double>(config_.data.seq_length);
  metrics.memory_gib =
      static_cast<double>(peak_memory(world_.device()) + units_->memory_outside_allocator()) / (1 << 30);
  if (device_info_.peak_flops)
    metrics.mfu = task_.flops_per_sample() * (rows / seconds) / (*device_info_.peak_flops * grid_.world.size);
  return metrics;
}

void Trainer::report(const TrainMetrics& metrics) {
  metrics_file_->write(metrics);
  totals_->add(metrics);
  const double eta = clock_->remaining_seconds(metrics.step);
  const bool due =
      metrics.step % config_.logging.every_steps == 0 || metrics.step == 1 || metrics.step == metrics.max_steps;
  if (fms_report_) {
    fms_report_->add(metrics);
    if (metrics.step % config_.logging.every_steps == 0 || metrics.step == metrics.max_steps)
      console_.line(fms_report_->lines(steady_seconds(), peak_reserved_memory(world_.device()),
                                       peak_memory(world_.device()) + units_->memory_outside_allocator()));
  } else if (due) {
    console_.line(console_line(metrics, eta, terminal_columns()));
    log_to_files(console_line(metrics, eta));
  }
  if (tensorboard_) tensorboard_->step(metrics, due);
  const std::string left = eta_text(eta);
  console_.status(metrics.step, metrics.max_steps,
                  fmt::format("loss {:.4f}{}", metrics.loss, left.empty() ? "" : " | " + left));
  mlperf_.train_loss(metrics);
}

void Trainer::guard_numbers(const StepRecord& record) {
  const StepNumbers numbers{record.step,
                            progress_.samples,
                            record[kLoss],
                            record[kGradNorm],
                            record[kNonfinite] > 0,
                            record[kSpiked] > 0,
                            std::llround(record[kSaturated]),
                            units_->scaled_tensors()};
  const auto problem = guard_->inspect(numbers, [this](int64_t step) { return find_nonfinite(step); });
  if (!problem) return;
  checkpoints_->complete();  // of an earlier step, which was sound
  throw CollectiveError(ExitCode::kInternal, fmt::format("{}; {}", *problem, newest_checkpoint()));
}

std::string Trainer::find_nonfinite(int64_t step) {
  StepReplay replay;
  replay.step = step;
  replay.compute = [this, step] { return forward_backward(task_.batch(step - 1)).item<double>(); };
  // Where the run goes on, the next step was queued before this one's numbers were read, and has changed the weights.
  if (in_flight_->updated_after(step)) replay.weights_step = progress_.completed;
  if (guard_->fp16()) replay.loss_scale = guard_->loss_scale();
  const std::string found = find_nonfinite_gradients(*units_, world_, replay);
  observe_gradient_faults(*units_, comm_.rank(), [this] { return progress_.completed + 1; });
  return found;
}

}  // namespace trireme
