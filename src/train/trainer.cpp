// The loop.
#include "trireme/train/trainer.h"

#include "agree.h"
#include "checkpoint.h"
#include "checkpoint_space.h"
#include "straggler.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/progress.h"
#include "trireme/train/signals.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace trireme {

ExitCode Trainer::run() {
  {
    const ProgressSection section("load", kStorageAllowance);
    fault_point("load", comm_.rank());
    load_or_resume();
    loaded_();
  }
  if (comm_.rank() == 0) {
    metrics_ = std::make_unique<MetricsFile>(directory_.path() / "metrics.jsonl",
                                             completed_ > 0 ? std::optional(completed_) : std::nullopt);
    metrics_->write_run(run_description());
  }
  if (config_.logging.mlperf) {
    const ProgressSection section("warm-up");
    fault_point("warm-up", comm_.rank());
    warm_up();
  }
  comm_.barrier();
  mlperf_.start_run();
  run_start_samples_ = samples_;
  run_begin_time_ = steady_seconds();
  start_block();
  start_clock();

  bool reached_target = false;
  first_step_ = completed_;
  last_save_time_ = steady_seconds();
  agree_to_stop();
  if (std::exchange(evaluation_left_, false)) reached_target = evaluate();
  // A stop waits for a step whose numbers are sound: only such a one is saved.
  while (completed_ < config_.train.max_steps && (!stop_agreed_ || consecutive_skips_ > 0) && !reached_target) {
    if (config_.logging.profile_step == completed_ + 1)
      profiled_step();
    else
      train_step(completed_);
    while (pending_.size() > 1) collect_metrics();
    if (reported_ > first_step_) directory_.claim();
    if (straggler_report_due(completed_ - first_step_)) report_stragglers();
    if (evaluation_due()) {
      flush_metrics();
      reached_target = evaluate();
    }
    if (save_due()) {
      save_checkpoint();
      agree_to_stop();
    }
  }
  flush_metrics();
  if (stop_agreed_ && completed_ < config_.train.max_steps && !reached_target) {
    const ProgressSection section("save", kStorageAllowance);
    if (!config_.output.save_on_stop) {
      checkpoints_->complete();
      const StopWithoutSave stop = stop_without_save(comm_, directory_.checkpoints(), completed_);
      log_info(stop.message);
      mlperf_end_run("aborted");
      return stop.code;
    }
    if (last_saved_step_ != completed_ || !checkpoints_->complete()) save_checkpoint();
    if (!checkpoints_->complete())
      throw AgreedError(
          ExitCode::kCannotWrite,
          fmt::format("stopped by a signal after step {}, but its state could not be saved in {}: run the "
                      "same command again, it goes on from the newest whole checkpoint",
                      completed_, directory_.checkpoints().string()));
    log_info(
        fmt::format("stopped by a signal after step {}; state saved, the same command goes on from there", completed_));
    mlperf_end_run("aborted");
    return ExitCode::kStopped;
  }
  if (!reached_target && task_.eval_samples() > 0 && last_evaluated_step_ != completed_) reached_target = evaluate();
  const bool has_target = config_.eval.target_loss || config_.eval.target_accuracy;
  mlperf_end_run(!has_target || reached_target ? "success" : "aborted");
  finish();
  return ExitCode::kDone;
}

void Trainer::agree_to_stop() {
  stop_agreed_ = comm_.all_reduce_host({stop_signal() != 0 || stop_agreed_ ? 1.0 : 0.0}, ReduceOp::kMax)[0] > 0;
}

bool Trainer::save_due() const {
  if (completed_ >= config_.train.max_steps) return false;
  if (save_by_clock_) return true;
  if (!config_.output.save_every_samples) return false;
  const int64_t size = config_.batch.global_batch_size;
  const int64_t every = (*config_.output.save_every_samples + size - 1) / size;
  // A save that a bad step put off is made up for.
  return completed_ % every == 0 || completed_ / every > std::max(last_saved_step_, first_step_) / every;
}

void Trainer::save_checkpoint() {
  flush_metrics();
  directory_.claim();
  if (consecutive_skips_ > 0) return;  // after a step whose numbers went wrong nothing is saved: the next sound one is
  const ProgressSection section("save", kStorageAllowance);
  fault_point("save", comm_.rank(), completed_);
  checkpoints_->start(state(), {completed_,
                                evaluations_,
                                {{"consecutive_skips", {static_cast<double>(consecutive_skips_)}},
                                 {"loss_window", loss_window_.state()},
                                 {"samples", {static_cast<double>(samples_)}},
                                 {"evaluation_left", {evaluation_left_ ? 1.0 : 0.0}},
                                 {"left_out", {static_cast<double>(left_out_)}},
                                 {"task", task_.state()}}});
  last_saved_step_ = completed_;
  last_save_time_ = steady_seconds();
  save_by_clock_ = false;
  start_clock();
}

void Trainer::finish() {
  const ProgressSection section("save", kStorageAllowance);
  directory_.claim();
  task_.save_artefact(*units_, directory_.path());
  checkpoints_->complete();
  comm_.barrier();
  log_info(fmt::format("wrote {}", (directory_.path() / (config_.lora ? "adapter" : "model")).string()));
  if (timed_steps_ == 0) return;
  const int64_t peak = peak_memory(device_) + units_->memory_outside_allocator(),
                planned = plan_.total() - plan_.overhead;
  std::string summary = fmt::format("{} steps in {}, peak memory {}", timed_steps_, format_duration(training_seconds_),
                                    format_bytes(static_cast<double>(peak)));
  // A CPU process' peak is its whole resident set, libraries included: nothing to hold a plan against.
  if (device_.is_cuda())
    summary += fmt::format(" (plan {}, {:+.1f} %)", format_bytes(static_cast<double>(planned)),
                           100.0 * (static_cast<double>(peak) / static_cast<double>(planned) - 1.0));
  log_info(summary);
}

}  // namespace trireme
