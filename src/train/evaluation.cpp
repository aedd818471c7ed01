#include "evaluation.h"

#include "trireme/base/fault.h"
#include "trireme/base/log.h"
#include "trireme/base/profile_range.h"
#include "trireme/base/time.h"
#include "trireme/comm/collective_check.h"
#include "trireme/watchdog/progress.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace trireme {

namespace {

/// Ends an evaluation early, on all ranks after the same forward pass.
struct EvaluationInterrupted {};

/// The sums include all ranks, so every rank finds the same error in them.
EvalResult evaluation_result(const TrainingTask& task, const EvalSums& sums, Split split) {
  try {
    return task.eval_result(sums, split);
  } catch (const Error& error) {
    throw CollectiveError(error.code(), error.what());
  }
}

bool reaches_target(const Config& config, const EvalMetrics& metrics) {
  return (config.eval.target_loss && metrics.loss <= *config.eval.target_loss) ||
         (config.eval.target_accuracy && metrics.mlm_accuracy.value_or(0) >= *config.eval.target_accuracy);
}

}  // namespace

Evaluation::Evaluation(const RunParts& run, ShardedUnits& units, RunClock& clock, Report& report, StopVote& vote,
                       RunProgress& progress, std::function<bool()> asked_to_stop)
    : run_(run),
      units_(units),
      clock_(clock),
      report_(report),
      vote_(vote),
      progress_(progress),
      asked_to_stop_(std::move(asked_to_stop)) {}

bool Evaluation::due() const { return run_.task.eval_samples() > 0 && clock_.evaluation_due(progress_.completed); }

bool Evaluation::last_missing() const {
  return all_steps_done() && !progress_.ends_early() && run_.task.eval_samples() > 0 &&
         progress_.evaluated_step != progress_.completed;
}

void Evaluation::evaluate() {
  if (clock_.skips_evaluation(progress_.evaluations++) && !all_steps_done()) return;
  const auto interrupt = [&] {
    --progress_.evaluations;
    progress_.evaluation_open = true;
    log_info(fmt::format("the evaluation after step {} is interrupted, because the run was asked to stop",
                         progress_.completed));
  };
  if (vote_.stopping()) return interrupt();
  report_.end_block();
  report_.start_evaluation();
  const auto metrics = run_passes(/*over_test=*/false);
  if (!metrics) return interrupt();
  const auto answers = answer_prompts();
  if (!answers) return interrupt();
  clock_.evaluated(metrics->seconds);
  progress_.evaluated_step = progress_.completed;
  progress_.reached_target = reaches_target(run_.config, *metrics);
  rank_evaluation(*metrics);
  report_.evaluation(*metrics);
  report_.samples(*answers);
  if (!progress_.ends_early() && !all_steps_done()) report_.start_block();
  clock_.start_step();
}

std::optional<std::vector<SampledText>> Evaluation::answer_prompts() {
  std::vector<SampledText> answers;
  if (run_.config.eval.prompts.empty()) return answers;
  const ProgressSection section("prompts");
  const ShardedUnits::Evaluation evaluating(units_);
  try {
    answers = run_.task.sample(units_, run_.comm(), [&](int64_t done, int64_t total) {
      report_.evaluation_status("prompts", done, total);
      if (vote_.cast(asked_to_stop_())) throw EvaluationInterrupted();
    });
    vote_.outcome();
  } catch (const EvaluationInterrupted&) {
    units_.release();
    return std::nullopt;
  }
  return answers;
}

void Evaluation::rank_evaluation(const EvalMetrics& metrics) {
  if (metrics.score() > progress_.best_score) {
    progress_.best_score = metrics.score();
    progress_.best_step = progress_.completed;
    progress_.evaluations_since_best = 0;
    return;
  }
  const std::optional<int64_t>& patience = run_.config.train.patience;
  ++progress_.evaluations_since_best;
  progress_.out_of_patience = patience && progress_.evaluations_since_best >= *patience;
}

std::optional<EvalMetrics> Evaluation::run_passes(bool over_test) {
  const double begin = steady_seconds();
  const ProgressSection section("evaluation");
  const ProfileRange range("evaluation");
  EvalSums local;
  int64_t passes = 0;
  Communicator& comm = run_.comm();
  const auto pass_done = [&](int64_t done, int64_t total) {
    passes = total;
    fault_point("evaluation", comm.rank(), progress_.completed);
    report_.evaluation_status(over_test ? "test" : "evaluation", done, total);
    if (vote_.cast(asked_to_stop_()) && done < total) throw EvaluationInterrupted();
  };
  const ShardedUnits::Evaluation evaluating(units_);
  try {
    local = over_test ? run_.task.test(units_, pass_done) : run_.task.evaluate(units_, pass_done);
    vote_.outcome();
  } catch (const EvaluationInterrupted&) {
    units_.release();
    return std::nullopt;
  }
  const EvalResult result =
      evaluation_result(run_.task, comm.all_reduce_host(local), over_test ? Split::kTest : Split::kValid);
  EvalMetrics metrics{progress_.completed,      progress_.samples,   result.loss,
                      steady_seconds() - begin, result.mlm_accuracy, passes};
  for (size_t i = 0; i < result.metrics.size(); ++i)
    metrics.more.emplace_back(run_.task.facts().metrics[i], result.metrics[i]);
  return metrics;
}

void Evaluation::prepare(const std::filesystem::path& directory, const std::function<void()>& claim) {
  // Before and after the passes rank 0 reads and writes files.
  constexpr SectionName kName("reference");
  std::optional<ProgressSection> section(std::in_place, kName, kStorageAllowance);
  const auto pass_done = [&](int64_t done, int64_t total) {
    section.emplace(kName, kStorageAllowance);
    fault_point("reference", run_.comm().rank(), done);
    report_.evaluation_status("reference", done, total);
    if (vote_.cast(asked_to_stop_()) && done < total) throw EvaluationInterrupted();
  };
  try {
    run_.task.prepare(units_, {run_.comm(), progress_.completed, directory, claim, pass_done});
  } catch (const EvaluationInterrupted&) {
    units_.release();
    log_info("the computation of the reference is interrupted, because the run was asked to stop");
  }
}

bool Evaluation::test() {
  if (run_.task.facts().test_samples == 0) return true;
  const auto metrics = run_passes(/*over_test=*/true);
  if (metrics) report_.test(*metrics);
  return metrics.has_value();
}

}  // namespace trireme
