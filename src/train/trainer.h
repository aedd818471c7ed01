#pragma once
// The training loop. train_step() is the path of a step, top to bottom (README "The path of a step"). Beside it:
// StepGuard (loss scale, non-finite numbers, spikes), RunClock (what is due when, step times), MetricsReader (results
// on their way to the host), StopVote (signals), Checkpoints.

#include "console.h"
#include "metrics.h"
#include "mlperf_events.h"
#include "run_directory.h"
#include "task.h"
#include "trireme/base/error.h"
#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/fsdp/sharded_units.h"
#include "trireme/ops/device.h"
#include "trireme/optim/optimizer.h"
#include "trireme/plan/plan.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

class Checkpoints;
class FmsReport;
class MetricsReader;
class Profiler;
class RunClock;
class StepGuard;
class StopVote;
class TensorboardLog;
enum class RunEnd;
struct RunSummary;
struct RunTotals;
struct StepRecord;
struct StepVerdict;

class Trainer {
 public:
  /// `loaded` is called on every rank when the weights are there, before the first step; it may throw.
  Trainer(const Config& config, World& world, TrainingTask& task, const MemoryPlan& plan, at::ScalarType compute_dtype,
          const DeviceInfo& device, RunDirectory& directory, MlperfEvents& mlperf, const RankGrid& grid,
          std::function<void()> loaded);
  ~Trainer();

  /// Loads weights or resumes, trains, evaluates, saves. Returns kDone, or after a signal kStopped with the state saved
  /// and whole on disk (output.save_on_stop: false: 128 + the signal's number). kDone, too, where train.max_time ends
  /// the run, with the state saved. However it ends, rank 0 writes summary.json.
  ExitCode run();

 private:
  /// How far the run is; what checkpoints keep of it.
  struct Progress {
    int64_t completed = 0;         // optimizer steps done
    int64_t reported = 0;          // steps whose results were read; at most one less than completed in the loop
    int64_t samples = 0;           // of the reported steps, over all ranks
    double last_loss = 0;          // of the last step reported; not kept
    int64_t evaluations = 0;       // begun and not interrupted
    int64_t evaluated_step = -1;   // the last evaluation was after this step
    bool evaluation_open = false;  // a signal interrupted the evaluation after `completed`: it is repeated
    bool reached_target = false;
    std::map<std::string, std::vector<double>> numbers() const;
  };

  // Start (trainer_start.cpp).
  void start();
  /// Loads the weights, or goes on from a checkpoint.
  void load_or_resume();
  void restore(const std::map<std::string, std::vector<double>>& numbers, bool extended);
  /// What a higher train.max_steps than that of `before` does to the schedule of a run that goes on.
  void report_extension(const Config& before) const;
  /// Before an MLPerf run's clock starts: forward and backward on synthetic rows; nothing is updated.
  void warm_up();
  std::string run_description() const;

  // The loop (trainer.cpp).
  ExitCode train();
  /// A signal, or on rank 0 train.max_time: this rank's vote to stop.
  bool asked_to_stop() const;
  bool finished() const { return progress_.completed >= config_.train.max_steps; }
  void report_stragglers(int64_t steps);
  std::vector<std::pair<std::string, at::Tensor>> state();
  void save_checkpoint();
  void write_event(const std::string& json_object);

  // A step (trainer_step.cpp).
  void train_step(int64_t step);
  /// Waits for the rows of step `step`, and starts preparing those of the next one.
  StepBatch next_batch(int64_t step);
  /// Sum of this rank's losses; the gradients are reduced over the ranks.
  at::Tensor forward_backward(const StepBatch& batch);
  at::Tensor reduce_statistics(const at::Tensor& loss_sum, const StepBatch& batch);
  /// What the optimizer multiplies gradients with: undoes the loss scale, and clips.
  at::Tensor gradient_multiplier(const at::Tensor& unscale, const at::Tensor& grad_norm) const;
  /// The learning rate of step `step`; waits for the step before where that may be skipped.
  double step_learning_rate(int64_t step) const;
  /// Whether optimizer.clip local means anything here: with one rank its own gradient is the sum.
  bool clips_locally() const;
  /// optimizer.clip local: what a rank multiplies its own gradients with, given their squared norm.
  at::Tensor local_clip(const at::Tensor& square) const;
  /// The next step of a run with a profile.
  void profiled_step();

  // Its results, read a step late (trainer_metrics.cpp).
  /// Reads the oldest step in flight; waits for that step only. Throws where its numbers end the run.
  void collect_metrics();
  void flush_metrics();
  TrainMetrics metrics_of(const StepRecord& record, double seconds) const;
  void report(const TrainMetrics& metrics);
  void guard_numbers(const StepRecord& record);
  /// Computes step `step` (from 1) again and says which parameters of which ranks have gradients that are not finite.
  /// Collective.
  std::string find_nonfinite(int64_t step);

  // Evaluation (trainer_evaluation.cpp).
  bool evaluation_due() const;
  /// All steps are done and the evaluation after them is not.
  bool last_evaluation_missing() const;
  /// Sets reached_target. A signal interrupts it: evaluation_open.
  void evaluate();
  /// The passes of an evaluation (`over_test`: of data.test) on all ranks; nothing: it was interrupted, the same on all
  /// ranks.
  std::optional<EvalMetrics> run_evaluation(bool over_test);
  /// After the last step, where data.test is given. Returns false when it was interrupted.
  bool run_test();
  void start_block();
  void end_block();

  // The end (trainer_finish.cpp).
  /// After a signal or train.max_time: saves, and returns kStopped only when the checkpoint of this step is whole on
  /// disk.
  ExitCode stop();
  ExitCode stop_without_saving(int signal);
  void finish();
  /// The last step of a run that has checkpoints is one, too; a failure is a warning.
  void save_last_step();
  /// Why the state must not be saved; empty: nothing. Collective.
  std::string state_problem();
  std::string newest_checkpoint() const;  // a part of a sentence
  void report_missed_target() const;
  void report_prediction() const;
  /// Rank 0, before an exception ends the run: end_run(), whose own failure is a warning.
  void report_failure(const std::exception& failure) noexcept;
  /// What is known of the run so far; runtime counts to now.
  RunSummary summary() const;
  /// Rank 0: the last line of metrics.jsonl, the console's block and summary.json; a file that cannot be written is a
  /// warning.
  void end_run(RunEnd end, int exit_code, const std::string& reason, RunSummary summary);
  void mlperf_end_run(const char* status);

  const Config& config_;
  World& world_;
  Communicator& comm_;
  RankGrid grid_;
  TrainingTask& task_;
  MemoryPlan plan_;
  at::ScalarType compute_dtype_;
  DeviceInfo device_info_;
  RunDirectory& directory_;
  MlperfEvents& mlperf_;
  std::function<void()> loaded_;
  std::unique_ptr<ShardedUnits> units_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<MetricsFile> metrics_file_;  // rank 0
  std::unique_ptr<Checkpoints> checkpoints_;   // writes events to metrics_file_
  std::unique_ptr<StepGuard> guard_;
  std::unique_ptr<RunClock> clock_;
  std::unique_ptr<MetricsReader> in_flight_;
  std::unique_ptr<StopVote> stop_vote_;
  Console console_;
  std::unique_ptr<RunTotals> totals_;
  std::unique_ptr<TensorboardLog> tensorboard_;  // rank 0, where events are written
  std::unique_ptr<FmsReport> fms_report_;        // rank 0, logging.style fms and fms_2024
  Progress progress_;
  std::optional<EvalMetrics> last_evaluation_;  // of this process
  std::unique_ptr<Profiler> profiler_;          // null: no step is recorded
};

}  // namespace trireme
