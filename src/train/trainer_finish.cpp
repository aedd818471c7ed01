// The end of a run: stopped by a signal, or done.
#include "trireme/train/trainer.h"

#include "checkpoint.h"
#include "collective_check.h"
#include "nonfinite.h"
#include "run_clock.h"
#include "step_guard.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/checkpoint/finished_run.h"
#include "trireme/train/signals.h"
#include "trireme/watchdog/progress.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

ExitCode Trainer::stop() {
  const ProgressSection section("save", kStorageAllowance);
  checkpoints_->complete();
  if (!checkpoints_->holds(progress_.completed)) {
    if (!config_.output.save_on_stop) return stop_without_saving();
    if (const std::string problem = state_problem(); !problem.empty())
      throw CollectiveError(ExitCode::kInternal,
                            fmt::format("stopped by a signal after step {}, and its state is not saved, because {}; {}",
                                        progress_.completed, problem, newest_checkpoint()));
    save_checkpoint();
    checkpoints_->complete();
    if (!checkpoints_->holds(progress_.completed))
      throw CollectiveError(ExitCode::kCannotWrite,
                            fmt::format("stopped by a signal after step {}, but its state could not be saved in {}; {}",
                                        progress_.completed, directory_.checkpoints().string(), newest_checkpoint()));
  }
  log_info(fmt::format("stopped by a signal after step {}; state saved, the same command goes on from there",
                       progress_.completed));
  mlperf_end_run("aborted");
  return ExitCode::kStopped;
}

ExitCode Trainer::stop_without_saving() {
  const int64_t saved = checkpoints_->committed();
  std::string lost = "nothing was computed yet";
  if (saved >= 0)
    lost = fmt::format("steps {} to {} are lost, the same command goes on after step {}", saved + 1,
                       progress_.completed, saved);
  else if (progress_.completed > 0)
    lost = fmt::format("the run's {} steps are lost, the same command starts afresh", progress_.completed);
  log_info(fmt::format("stopped by a signal after step {} without saving (output.save_on_stop: false): {}",
                       progress_.completed, lost));
  mlperf_end_run("aborted");
  // The exit code of a process that the signal ends, because 75 promises a saved state. The same on all ranks.
  const double signal = comm_.all_reduce_host({static_cast<double>(stop_signal())}, ReduceOp::kMax)[0];
  return static_cast<ExitCode>(128 + static_cast<int>(signal));
}

std::string Trainer::newest_checkpoint() const {
  return checkpoints_->committed() >= 0
             ? fmt::format("the newest checkpoint is of step {}, and the same command goes on from it",
                           checkpoints_->committed())
             : "this run has saved no checkpoint, and the same command starts afresh";
}

std::string Trainer::state_problem() {
  // A skipped step changes no weight, no moment and no count, so the state after it is that of the last sound step. But
  // weights that are not finite make every step a skipped one, and such a state must not be saved.
  return guard_->consecutive_skips() == 0 ? "" : find_nonfinite_state(state(), comm_);
}

void Trainer::save_last_step() {
  const bool regular = config_.output.save_every_samples || config_.output.save_every_minutes;
  if (!regular && checkpoints_->committed() < 0) return;
  std::string problem;
  try {
    if (clock_->last_saved_step() == progress_.completed) {
      checkpoints_->complete();
      if (checkpoints_->holds(progress_.completed)) return;
    }
    problem = state_problem();
    if (problem.empty()) {
      save_checkpoint();
      checkpoints_->complete();
    }
  } catch (const CollectiveError& error) {
    problem = error.what();
  }
  if (problem.empty() && checkpoints_->holds(progress_.completed)) return;
  log_info(
      fmt::format("warning: step {} is the last and has no checkpoint{}{}; the run cannot be extended from it. What "
                  "was trained is written all the same",
                  progress_.completed, problem.empty() ? "" : ": ", problem));
}

void Trainer::report_missed_target() const {
  if (progress_.reached_target) return;
  const auto report = [&](const char* key, std::optional<double> target, std::optional<double> last) {
    if (!target) return;
    log_info(fmt::format("warning: eval.{} {:.6g} was not reached{}", key, *target,
                         last ? fmt::format(": the last evaluation gave {:.6g}", *last) : std::string()));
  };
  report("target_loss", config_.eval.target_loss,
         last_evaluation_ ? std::optional(last_evaluation_->loss) : std::nullopt);
  report("target_accuracy", config_.eval.target_accuracy,
         last_evaluation_ ? last_evaluation_->mlm_accuracy : std::nullopt);
}

void Trainer::finish() {
  report_missed_target();
  const bool has_target = config_.eval.target_loss || config_.eval.target_accuracy;
  mlperf_end_run(!has_target || progress_.reached_target ? "success" : "aborted");
  const ProgressSection section("save", kStorageAllowance);
  directory_.claim();
  save_last_step();
  task_.save_artefact(*units_, directory_.path());
  if (comm_.rank() == 0) record_finish(directory_.path(), {progress_.completed, config_.train.max_steps});
  comm_.barrier();
  log_info(fmt::format("wrote {}", (directory_.path() / (config_.lora ? "adapter" : "model")).string()));
  report_summary();
}

void Trainer::report_summary() const {
  if (clock_->timed_steps() == 0) return;
  const int64_t peak = peak_memory(world_.device()) + units_->memory_outside_allocator(),
                planned = plan_.total() - plan_.overhead;
  std::string summary = fmt::format("{} steps in {}, peak memory {}", clock_->timed_steps(),
                                    format_duration(clock_->timed_seconds()), format_bytes(static_cast<double>(peak)));
  // A CPU process' peak is its whole resident set, libraries included: it cannot be compared with a plan.
  if (world_.device().is_cuda())
    summary += fmt::format(" (plan {}, {:+.1f} %)", format_bytes(static_cast<double>(planned)),
                           100.0 * (static_cast<double>(peak) / static_cast<double>(planned) - 1.0));
  log_info(summary);
  // The prediction is of the whole batch: it is compared where all of the newest steps have that.
  const int64_t newest = std::min(clock_->timed_steps(), RunClock::kNewestSteps);
  if (!plan_.cost.known || progress_.completed - newest < clock_->batches().first_largest()) return;
  const double measured = clock_->median_step_seconds();
  log_info(fmt::format("{}; measured {:.1f} ms (prediction {:+.1f} %)", describe_cost(plan_.cost), measured * 1e3,
                       100.0 * (plan_.cost.total() / measured - 1.0)));
}

void Trainer::mlperf_end_run(const char* status) {
  end_block();
  mlperf_.end_run(status, progress_.completed, progress_.samples, clock_->run_rate(progress_.samples));
}

}  // namespace trireme
