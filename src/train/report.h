#pragma once
// Private to train/: the output of a run while it runs and when it ends. One object, and where it goes: metrics.jsonl,
// console, TensorBoard, the lines and files of other trainers, MLPerf's log, summary.json.

#include "console.h"
#include "log_styles.h"
#include "run_summary.h"
#include "train_step.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// Rank 0 writes; on other ranks nothing happens. Objects given outlive the report.
class Report {
 public:
  Report(const RunParts& run, RunClock& clock, const TrainStep& step, const RunProgress& progress);

  /// When the weights are there: opens metrics.jsonl and the others, and describes the run. WriteError.
  void open();
  /// The clock of the run starts.
  void start_run();
  /// One JSON object for metrics.jsonl.
  void event(const std::string& json_object);
  /// A step whose results were read; it took `seconds`.
  void step(const StepRecord& record, double seconds);
  /// The steps between two evaluations, as MLPerf counts them.
  void start_block();
  void end_block();
  void start_evaluation() { run_.mlperf.start_evaluation(progress_.samples); }
  /// Passes of an evaluation that are done.
  void evaluation_status(const char* what, int64_t done, int64_t total);
  void evaluation(const EvalMetrics& metrics);
  void test(const EvalMetrics& metrics);
  /// Answers to eval.prompts after the newest evaluation.
  void samples(const std::vector<SampledText>& texts);
  void flush();

  /// Training has ended, the end of the run has not: `status` is "success" or "aborted".
  void end_training(const char* status);
  /// The known facts of the run; runtime counts to now.
  RunSummary summary() const;
  /// The last line of metrics.jsonl, the console's block and summary.json; a file that cannot be written is a warning.
  void end(RunEnd end, int exit_code, const std::string& reason, RunSummary summary);
  void missed_target() const;
  /// The plan's prediction beside the measured steps.
  void prediction() const;

 private:
  nlohmann::json description() const;
  TrainMetrics metrics_of(const StepRecord& record, double seconds) const;
  int64_t memory_in_use() const;

  const RunParts& run_;
  const Config& config_;
  RunClock& clock_;
  const TrainStep& step_;
  const RunProgress& progress_;
  bool writes_;  // rank 0
  Console console_;
  RunTotals totals_;
  std::optional<EvalMetrics> last_evaluation_;  // of this process, on every rank
  std::unique_ptr<MetricsFile> metrics_file_;
  std::unique_ptr<TensorboardLog> tensorboard_;  // where events are written
  std::unique_ptr<FmsReport> fms_report_;        // logging.style fms and fms_2024
};

}  // namespace trireme
