#pragma once
// Private to train/: evaluations between steps, and the test after the last one.

#include "report.h"
#include "stop.h"
#include "trireme/fsdp/sharded_units.h"

#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

namespace trireme {

/// Its methods are collective but for due() and last_missing(). Objects given outlive it.
class Evaluation {
 public:
  /// `asked_to_stop`: this rank's vote between forward passes.
  Evaluation(const RunParts& run, ShardedUnits& units, RunClock& clock, Report& report, StopVote& vote,
             RunProgress& progress, std::function<bool()> asked_to_stop);

  /// Whether one follows the step that was done last.
  bool due() const;
  /// All steps are done and the evaluation after them is not.
  bool last_missing() const;
  /// Sets reached_target, out_of_patience and the best evaluation. A signal interrupts it: evaluation_open, and it is
  /// repeated when the run goes on.
  void evaluate();
  /// TrainingTask::prepare(). A signal interrupts it; then the run stops before its first step.
  void prepare(const std::filesystem::path& directory, const std::function<void()>& claim);
  /// After the last step, where data.test is given. Returns false when it was interrupted.
  bool test();

 private:
  /// The passes (`over_test`: over data.test) on all ranks; nothing: interrupted, the same on all ranks.
  std::optional<EvalMetrics> run_passes(bool over_test);
  /// Answers to eval.prompts; nullopt: interrupted.
  std::optional<std::vector<SampledText>> answer_prompts();
  /// Compares the evaluation with the best before it.
  void rank_evaluation(const EvalMetrics& metrics);
  bool all_steps_done() const { return progress_.completed >= run_.config.train.max_steps; }

  const RunParts& run_;
  ShardedUnits& units_;
  RunClock& clock_;
  Report& report_;
  StopVote& vote_;
  RunProgress& progress_;
  std::function<bool()> asked_to_stop_;
};

}  // namespace trireme
