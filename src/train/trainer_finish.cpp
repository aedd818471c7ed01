// The end of a run: stopped by a signal, or done.
#include "trainer.h"

#include "checkpoint.h"
#include "collective_check.h"
#include "nemo_results.h"
#include "nonfinite.h"
#include "run_clock.h"
#include "run_summary.h"
#include "signals.h"
#include "step_guard.h"
#include "tensorboard_log.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/checkpoint/finished_run.h"
#include "trireme/watchdog/progress.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace trireme {

ExitCode Trainer::run() {
  try {
    return train();
  } catch (const std::exception& error) {
    report_failure(error);
    throw;
  }
}

void Trainer::report_failure(const std::exception& failure) noexcept {
  // Until the first step has ended there is no run to sum up, and output.dir may become another's.
  if (comm_.rank() != 0 || !directory_.claimed()) return;
  const auto* own = dynamic_cast<const Error*>(&failure);
  const std::string reason = failure.what();
  try {
    end_run(RunEnd::kFailed, static_cast<int>(own != nullptr ? own->code() : ExitCode::kInternal),
            reason.substr(0, reason.find("\nException raised from")), summary());
  } catch (const std::exception& error) {
    // A device that has failed cannot say how much memory was in use; the failure itself is what is reported.
    log_warn(fmt::format("summary.json is not written: {}", error.what()));
  }
}

ExitCode Trainer::stop() {
  const ProgressSection section("save", kStorageAllowance);
  checkpoints_->complete();
  // The same on all ranks; without a signal it was rank 0's clock.
  const int signal = static_cast<int>(comm_.all_reduce_host({static_cast<double>(stop_signal())}, ReduceOp::kMax)[0]);
  const char* why = signal != 0 ? "stopped by a signal" : "stopped by train.max_time";
  if (!checkpoints_->holds(progress_.completed)) {
    if (!config_.output.save_on_stop && signal != 0) return stop_without_saving(signal);
    if (const std::string problem = state_problem(); !problem.empty())
      throw CollectiveError(ExitCode::kInternal,
                            fmt::format("{} after step {}, and its state is not saved, because {}; {}", why,
                                        progress_.completed, problem, newest_checkpoint()));
    save_checkpoint();
    checkpoints_->complete();
    if (!checkpoints_->holds(progress_.completed))
      throw CollectiveError(ExitCode::kCannotWrite,
                            fmt::format("{} after step {}, but its state could not be saved in {}; {}", why,
                                        progress_.completed, directory_.checkpoints().string(), newest_checkpoint()));
  }
  const std::string reason =
      fmt::format("{} after step {}; state saved, the same command goes on from there", why, progress_.completed);
  log_info(reason);
  mlperf_end_run("aborted");
  const ExitCode code = signal != 0 ? ExitCode::kStopped : ExitCode::kDone;
  end_run(signal != 0 ? RunEnd::kSignal : RunEnd::kMaxTime, static_cast<int>(code), reason, summary());
  return code;
}

ExitCode Trainer::stop_without_saving(int signal) {
  const int64_t saved = checkpoints_->committed();
  std::string lost = "nothing was computed yet";
  if (saved >= 0)
    lost = fmt::format("steps {} to {} are lost, the same command goes on after step {}", saved + 1,
                       progress_.completed, saved);
  else if (progress_.completed > 0)
    lost = fmt::format("the run's {} steps are lost, the same command starts afresh", progress_.completed);
  const std::string reason = fmt::format(
      "stopped by a signal after step {} without saving (output.save_on_stop: false): {}", progress_.completed, lost);
  log_info(reason);
  mlperf_end_run("aborted");
  // The exit code of a process that the signal ends, because 75 promises a saved state.
  const int code = 128 + signal;
  if (progress_.completed > 0) end_run(RunEnd::kSignal, code, reason, summary());
  return static_cast<ExitCode>(code);
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
  const RunSummary trained = summary();  // the time of the artefact is not training's
  task_.save_artefact(*units_, directory_.path());
  comm_.barrier();
  log_info(fmt::format("wrote {}", (directory_.path() / (config_.lora ? "adapter" : "model")).string()));
  report_prediction();
  end_run(progress_.reached_target ? RunEnd::kTarget : RunEnd::kDone, 0, "", trained);
  fault_point("finish", comm_.rank(), progress_.completed);
  if (comm_.rank() != 0) return;
  // Last: a run that ends before goes on from its last checkpoint and writes the rest.
  try {
    record_finish(directory_.path(), {progress_.completed, config_.train.max_steps});
  } catch (const Error& error) {
    log_warn(error.what());
  }
}

RunSummary Trainer::summary() const {
  RunSummary s;
  s.step = progress_.completed;
  s.max_steps = config_.train.max_steps;
  s.samples = progress_.samples;
  s.totals = *totals_;
  s.tokens_per_step_row = static_cast<double>(config_.data.seq_length);
  s.tokens = totals_->newest ? totals_->newest->tokens
                             : clock_->batches().before(progress_.completed) * config_.data.seq_length;
  s.ranks = comm_.size();
  s.resumed_after = clock_->first_step();
  s.runtime_s = clock_->run_seconds();
  s.samples_per_s = clock_->run_rate(progress_.samples);
  if (totals_->newest && task_.facts().train_rows > 0)
    s.epoch = static_cast<double>(totals_->newest->rows) / static_cast<double>(task_.facts().train_rows);
  s.row_flops = task_.flops_per_sample();
  s.peak_flops = device_info_.peak_flops;
  s.peak_memory = static_cast<double>(peak_memory(world_.device()) + units_->memory_outside_allocator());
  if (world_.device().is_cuda()) s.planned_memory = static_cast<double>(plan_.total() - plan_.overhead);
  s.target_loss = config_.eval.target_loss;
  s.target_accuracy = config_.eval.target_accuracy;
  s.target_reached = progress_.reached_target;
  s.output = directory_.path();
  return s;
}

void Trainer::end_run(RunEnd end, int exit_code, const std::string& reason, RunSummary s) {
  if (comm_.rank() != 0) return;
  s.end = end;
  s.exit_code = exit_code;
  s.reason = reason;
  s.files = left_files(s.output);
  s.next = next_command(config_, end);
  const std::string json = summary_json(s);
  if (metrics_file_) metrics_file_->write_run(json);
  if (tensorboard_) tensorboard_->flush();
  for (const std::string& text : summary_lines(s)) {
    console_.line(text);
    log_to_files(text);
  }
  if (config_.logging.style == LoggingSection::Style::kNemo && (end == RunEnd::kDone || end == RunEnd::kMaxTime))
    write_lightning_log(s.output, end == RunEnd::kDone
                                      ? fmt::format("`Trainer.fit` stopped: `max_steps={}` reached.", s.max_steps)
                                      : fmt::format("Time limit reached: train.max_time {}", *config_.train.max_time));
  try {
    write_file_atomic(s.output / "summary.json", nlohmann::ordered_json::parse(json).dump(2) + "\n");
  } catch (const Error& error) {
    log_warn(error.what());
  }
}

void Trainer::report_prediction() const {
  if (clock_->timed_steps() == 0 || !plan_.cost.known) return;
  // The prediction is of the whole batch: it is compared where all of the newest steps have that.
  const int64_t newest = std::min(clock_->timed_steps(), RunClock::kNewestSteps);
  if (progress_.completed - newest < clock_->batches().first_largest()) return;
  const double measured = clock_->median_step_seconds();
  log_info(fmt::format("{}; measured {:.1f} ms (prediction {:+.1f} %)", describe_cost(plan_.cost), measured * 1e3,
                       100.0 * (plan_.cost.total() / measured - 1.0)));
}

void Trainer::mlperf_end_run(const char* status) {
  end_block();
  mlperf_.end_run(status, progress_.completed, progress_.samples, clock_->run_rate(progress_.samples));
}

}  // namespace trireme
