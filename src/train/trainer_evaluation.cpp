// Evaluations, and the blocks of steps between them as MLPerf counts them.
#include "trainer.h"

#include "collective_check.h"
#include "run_clock.h"
#include "run_summary.h"
#include "stop_vote.h"
#include "tensorboard_log.h"
#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/profile_range.h"
#include "trireme/base/time.h"
#include "trireme/watchdog/progress.h"

#include <fmt/format.h>

namespace trireme {

namespace {

/// Ends an evaluation early, on all ranks after the same forward pass.
struct EvaluationInterrupted {};

/// The sums are those of all ranks, so that every rank finds the same error in them.
EvalResult evaluation_result(const TrainingTask& task, const EvalSums& sums) {
  try {
    return task.eval_result(sums);
  } catch (const Error& error) {
    throw CollectiveError(error.code(), error.what());
  }
}

bool reaches_target(const Config& config, const EvalMetrics& metrics) {
  return (config.eval.target_loss && metrics.loss <= *config.eval.target_loss) ||
         (config.eval.target_accuracy && metrics.mlm_accuracy.value_or(0) >= *config.eval.target_accuracy);
}

}  // namespace

bool Trainer::evaluation_due() const { return task_.eval_samples() > 0 && clock_->evaluation_due(progress_.completed); }

bool Trainer::last_evaluation_missing() const {
  return finished() && !progress_.reached_target && task_.eval_samples() > 0 &&
         progress_.evaluated_step != progress_.completed;
}

void Trainer::evaluate() {
  if (clock_->skips_evaluation(progress_.evaluations++) && !finished()) return;
  // The whole evaluation is repeated when the run goes on.
  const auto interrupt = [&] {
    --progress_.evaluations;
    progress_.evaluation_open = true;
    log_info(fmt::format("the evaluation after step {} is interrupted, because the run was asked to stop",
                         progress_.completed));
  };
  if (stop_vote_->stopping()) return interrupt();
  end_block();
  mlperf_.start_evaluation(progress_.samples);
  const auto evaluation = run_evaluation(/*over_test=*/false);
  if (!evaluation) return interrupt();
  const EvalMetrics& metrics = *evaluation;
  clock_->evaluated(metrics.seconds);
  totals_->add(metrics);
  last_evaluation_ = metrics;
  progress_.evaluated_step = progress_.completed;
  progress_.reached_target = reaches_target(config_, metrics);
  if (comm_.rank() == 0) {
    metrics_file_->write(metrics);
    if (tensorboard_) tensorboard_->evaluation(metrics);
    console_.line(console_line(metrics, config_.eval.target_loss, config_.eval.target_accuracy));
  }
  mlperf_.end_evaluation(metrics);
  if (!progress_.reached_target && !finished()) start_block();
  clock_->start_step();
}

std::optional<EvalMetrics> Trainer::run_evaluation(bool over_test) {
  const double begin = steady_seconds();
  const ProgressSection section("evaluation");
  const ProfileRange range("evaluation");
  EvalSums local;
  int64_t passes = 0;
  const auto pass_done = [&](int64_t done, int64_t total) {
    passes = total;
    fault_point("evaluation", comm_.rank(), progress_.completed);
    if (comm_.rank() == 0) console_.eval_status(over_test ? "test" : "evaluation", done, total);
    if (stop_vote_->cast(asked_to_stop()) && done < total) throw EvaluationInterrupted();
  };
  const ShardedUnits::Evaluation evaluating(*units_);
  try {
    local = over_test ? task_.test(*units_, pass_done) : task_.evaluate(*units_, pass_done);
    stop_vote_->outcome();
  } catch (const EvaluationInterrupted&) {
    units_->release();
    return std::nullopt;
  }
  const EvalResult result = evaluation_result(task_, comm_.all_reduce_host(local));
  return EvalMetrics{progress_.completed,      progress_.samples,   result.loss,
                     steady_seconds() - begin, result.mlm_accuracy, passes};
}

bool Trainer::run_test() {
  if (task_.facts().test_samples == 0) return true;
  const auto metrics = run_evaluation(/*over_test=*/true);
  if (!metrics) return false;
  totals_->test = metrics;
  if (comm_.rank() != 0) return true;
  metrics_file_->write_test(*metrics);
  if (tensorboard_) tensorboard_->test(*metrics);
  console_.line(test_console_line(*metrics));
  return true;
}

void Trainer::start_block() {
  clock_->start_block(progress_.samples);
  mlperf_.start_block(progress_.samples);
}

void Trainer::end_block() {
  if (const auto block = clock_->end_block(progress_.completed, progress_.samples, progress_.last_loss))
    mlperf_.end_block(*block);
}

}  // namespace trireme
