// How a run ends: stopped by a signal, or done.
#include "trireme/train/trainer.h"

#include "agree.h"
#include "checkpoint.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/finished_run.h"
#include "trireme/train/signals.h"
#include "trireme/watchdog/progress.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

/// In parts: a whole shard's comparison would take memory of the shard's size.
bool all_finite(const at::Tensor& tensor) {
  constexpr int64_t kPart = int64_t{1} << 24;
  if (!tensor.is_floating_point()) return true;
  at::NoGradGuard no_grad;
  const at::Tensor flat = tensor.reshape({-1});
  at::Tensor finite = at::ones({}, tensor.options().dtype(at::kBool));
  for (int64_t begin = 0; begin < flat.numel(); begin += kPart)
    finite.logical_and_(flat.narrow(0, begin, std::min(kPart, flat.numel() - begin)).isfinite().all());
  return finite.item<bool>();
}

}  // namespace

ExitCode Trainer::stop() {
  const ProgressSection section("save", kStorageAllowance);
  checkpoints_->complete();
  if (!checkpoints_->holds(completed_)) {
    if (!config_.output.save_on_stop) return stop_without_saving();
    if (const std::string problem = state_problem(); !problem.empty())
      throw AgreedError(ExitCode::kInternal,
                        fmt::format("stopped by a signal after step {}, and its state is not saved, because {}; {}",
                                    completed_, problem, newest_checkpoint()));
    save_checkpoint();
    checkpoints_->complete();
    if (!checkpoints_->holds(completed_))
      throw AgreedError(ExitCode::kCannotWrite,
                        fmt::format("stopped by a signal after step {}, but its state could not be saved in {}; {}",
                                    completed_, directory_.checkpoints().string(), newest_checkpoint()));
  }
  log_info(
      fmt::format("stopped by a signal after step {}; state saved, the same command goes on from there", completed_));
  mlperf_end_run("aborted");
  return ExitCode::kStopped;
}

ExitCode Trainer::stop_without_saving() {
  const int64_t saved = checkpoints_->committed();
  std::string lost = "nothing was computed yet";
  if (saved >= 0)
    lost = fmt::format("steps {} to {} are lost, the same command goes on after step {}", saved + 1, completed_, saved);
  else if (completed_ > 0)
    lost = fmt::format("the run's {} steps are lost, the same command starts afresh", completed_);
  log_info(fmt::format("stopped by a signal after step {} without saving (output.save_on_stop: false): {}", completed_,
                       lost));
  mlperf_end_run("aborted");
  // As a process ends that the signal ends: 75 would promise a saved state. All ranks give the same.
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
  if (consecutive_skips_ == 0) return "";
  std::string mine;
  for (const auto& [name, tensor] : state())
    if (mine.empty() && !all_finite(tensor)) mine = fmt::format("{} on rank {} is not finite", name, comm_.rank());
  if (comm_.all_reduce_host({mine.empty() ? 0.0 : 1.0}, ReduceOp::kMax)[0] == 0) return "";
  const auto all = comm_.gather_host(mine);
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  return first == all.end() ? "the state of another rank is not finite" : *first;
}

void Trainer::save_last_step() {
  const bool regular = config_.output.save_every_samples || config_.output.save_every_minutes;
  if (!regular && checkpoints_->committed() < 0) return;
  std::string problem;
  try {
    if (last_saved_step_ == completed_) {
      checkpoints_->complete();
      if (checkpoints_->holds(completed_)) return;
    }
    problem = state_problem();
    if (problem.empty()) {
      save_checkpoint();
      checkpoints_->complete();
    }
  } catch (const AgreedError& error) {
    problem = error.what();
  }
  if (problem.empty() && checkpoints_->holds(completed_)) return;
  log_info(
      fmt::format("warning: step {} is the last and has no checkpoint{}{}; the run cannot be extended from it. What "
                  "was trained is written all the same",
                  completed_, problem.empty() ? "" : ": ", problem));
}

void Trainer::report_missed_target() const {
  if (reached_target_) return;
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
  mlperf_end_run(!has_target || reached_target_ ? "success" : "aborted");
  const ProgressSection section("save", kStorageAllowance);
  directory_.claim();
  save_last_step();
  task_.save_artefact(*units_, directory_.path());
  if (comm_.rank() == 0) record_finish(directory_.path(), {completed_, config_.train.max_steps});
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
