// The loop.
#include "trireme/train/trainer.h"

#include "checkpoint.h"
#include "stop_vote.h"
#include "straggler.h"
#include "trireme/base/fault.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/time.h"
#include "trireme/train/signals.h"
#include "trireme/watchdog/progress.h"

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
    // What a life that was killed has left of its artefacts; output.dir is locked, so nobody else writes there.
    for (const char* folder : {"", "adapter", "model", "checkpoints"})
      remove_dead_temporaries(directory_.path() / folder);
    metrics_ = std::make_unique<MetricsFile>(directory_.path() / "metrics.jsonl",
                                             completed_ > 0 ? std::optional(completed_) : std::nullopt,
                                             /*evaluated=*/!evaluation_left_);
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

  first_step_ = completed_;
  last_save_time_ = steady_seconds();
  stop_agreed_ = stop_vote_->decide(stop_signal() != 0);
  if (std::exchange(evaluation_left_, false)) evaluate();
  while (completed_ < config_.train.max_steps && !stop_agreed_ && !reached_target_) {
    if (config_.logging.profile_step == completed_ + 1)
      profiled_step();
    else
      train_step(completed_);
    while (pending_.size() > 1) collect_metrics();
    if (reported_ > first_step_) directory_.claim();
    if (straggler_report_due(completed_ - first_step_)) report_stragglers();
    if (evaluation_due()) {
      flush_metrics();
      evaluate();
    }
    if (!save_due()) continue;
    flush_metrics();
    // A step whose numbers are not finite puts the save off to the next sound one, which shows that the weights are.
    if (consecutive_skips_ > 0) continue;
    save_checkpoint();
    stop_agreed_ = stop_vote_->decide(stop_signal() != 0 || stop_agreed_);
  }
  flush_metrics();
  if (last_evaluation_missing()) evaluate();
  if (!reached_target_ && (completed_ < config_.train.max_steps || last_evaluation_missing())) return stop();
  finish();
  return ExitCode::kDone;
}

bool Trainer::last_evaluation_missing() const {
  return completed_ >= config_.train.max_steps && !reached_target_ && task_.eval_samples() > 0 &&
         last_evaluated_step_ != completed_;
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
  directory_.claim();
  const ProgressSection section("save", kStorageAllowance);
  fault_point("save", comm_.rank(), completed_);
  checkpoints_->start(state(), {completed_,
                                evaluations_,
                                {{"consecutive_skips", {static_cast<double>(consecutive_skips_)}},
                                 {"loss_window", loss_window_.state()},
                                 {"samples", {static_cast<double>(samples_)}},
                                 {"evaluation_left", {evaluation_left_ ? 1.0 : 0.0}},
                                 {"evaluated_step", {static_cast<double>(last_evaluated_step_)}},
                                 {"reached_target", {reached_target_ ? 1.0 : 0.0}},
                                 {"left_out", {static_cast<double>(steps_skipped_)}},
                                 {"task", units_->scale_state()}}});
  last_saved_step_ = completed_;
  last_save_time_ = steady_seconds();
  save_by_clock_ = false;
  start_clock();
}

}  // namespace trireme
