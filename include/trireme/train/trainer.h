#pragma once
// The training loop. train_step() is the path of a step, top to bottom (README "The path of a step").

#include "trireme/base/error.h"
#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/fsdp/plan.h"
#include "trireme/fsdp/sharded_units.h"
#include "trireme/optim/optimizer.h"
#include "trireme/train/console.h"
#include "trireme/train/device.h"
#include "trireme/train/loss_window.h"
#include "trireme/train/metrics.h"
#include "trireme/train/mlperf_events.h"
#include "trireme/train/run_directory.h"
#include "trireme/train/task.h"

#include <c10/core/Event.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

class Checkpoints;
class StopVote;

class Trainer {
 public:
  /// `loaded` is called on every rank when the weights are there, before the first step; it may throw.
  Trainer(const Config& config, World& world, TrainingTask& task, const MemoryPlan& plan, at::ScalarType compute_dtype,
          const DeviceInfo& device, RunDirectory& directory, MlperfEvents& mlperf, std::function<void()> loaded);
  ~Trainer();

  /// Loads weights or resumes, trains, evaluates, saves. Returns kDone, or after a signal kStopped with the state saved
  /// and whole on disk (output.save_on_stop: false: 128 + the signal's number).
  ExitCode run();

 private:
  /// What a step computed, still on its way to the host.
  struct PendingMetrics {
    int64_t step = 0;
    double lr = 0;
    at::Tensor values;                 // fp64, on its way to the host on GPUs
    std::shared_ptr<c10::Event> done;  // everything of this step; null on CPUs
    double finished = 0;               // CPUs: when the step ended
  };

  void train_step(int64_t step);
  /// Sum of this rank's losses; the gradients are reduced over the ranks.
  at::Tensor forward_backward(const StepBatch& batch);
  /// Before an MLPerf run's clock starts: forward and backward on made-up rows, nothing updated.
  void warm_up();
  /// The next step with its timeline recorded (logging.profile_step).
  void profiled_step();
  std::shared_ptr<c10::Event> record_event() const;
  /// The next step's time counts from here (after start-up, evaluations and saves).
  void start_clock();
  /// Steps so far that were skipped, because of numbers which were not finite or as a spike: the schedule does not
  /// count them, as the optimizer does not.
  int64_t steps_skipped() const;
  at::Tensor reduce_statistics(const at::Tensor& loss_sum, const StepBatch& batch);
  /// Whether optimizer.clip local means anything here: with one rank its own gradient is the sum.
  bool clips_locally() const;
  /// optimizer.clip local: what a rank multiplies its own gradients with, given their squared norm.
  at::Tensor local_clip(const at::Tensor& square) const;
  /// Skips or stops, as train.on_nonfinite says. Collective.
  void handle_nonfinite(int64_t step, double loss, double grad_norm);
  /// Computes step `step` (from 1) again and tells which parameters of which ranks have gradients that are not finite.
  /// Collective.
  std::string find_nonfinite(int64_t step);
  /// Whether the weights are still those that step `step` was computed with.
  bool weights_unchanged_since(int64_t step) const;
  /// Calls `check` with the name and the local gradient of every parameter in backward; null: no more.
  void observe_gradients(const std::function<void(const std::string&, const at::Tensor&)>& check, int64_t step = 0);
  void report_stragglers();
  void report_saturation(int64_t step, int64_t tensors);
  /// Takes the numbers of the oldest step in flight; waits for that step only. Stops the run on non-finite numbers.
  void collect_metrics();
  void flush_metrics();
  void report(const TrainMetrics& metrics);
  /// Sets reached_target_. A signal leaves the evaluation undone: evaluation_left_.
  void evaluate();
  bool evaluation_due() const;
  /// All steps are done and the evaluation after them is not.
  bool last_evaluation_missing() const;
  bool save_due() const;
  void save_checkpoint();
  /// Loads the weights, or goes on from a checkpoint.
  void load_or_resume();
  /// What a higher train.max_steps does to the schedule of a run that goes on.
  void report_extension(int64_t max_steps_before) const;
  /// After a signal: saves, and returns kStopped only when the checkpoint of this step is whole on disk.
  ExitCode stop();
  ExitCode stop_without_saving();
  std::string newest_checkpoint() const;  // a part of a sentence
  /// Why the state must not be saved; empty: nothing. Collective.
  std::string state_problem();
  /// The last step of a run that has checkpoints is one, too; a failure is a warning.
  void save_last_step();
  void report_missed_target() const;
  void finish();
  void start_block();
  void end_block();
  void mlperf_end_run(const char* status);
  std::string run_description() const;
  std::vector<std::pair<std::string, at::Tensor>> state();

  const Config& config_;
  World& world_;
  Communicator& comm_;
  TrainingTask& task_;
  MemoryPlan plan_;
  at::Device device_;
  at::ScalarType compute_dtype_;
  DeviceInfo device_info_;
  RunDirectory& directory_;
  MlperfEvents& mlperf_;
  std::function<void()> loaded_;
  std::unique_ptr<ShardedUnits> units_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<Checkpoints> checkpoints_;

  at::Tensor loss_scale_, growth_tracker_;  // fp16: dynamic loss scale, on the device
  at::Tensor halted_;                       // device scalar: 1 after a step with non-finite numbers that ends the run
  bool skip_nonfinite_ = false;
  bool evaluation_left_ = false;  // a signal came before the end of the evaluation after completed_: it is done again
  bool reached_target_ = false;
  std::optional<EvalMetrics> last_evaluation_;  // of this process
  LossWindow loss_window_;
  int64_t first_step_ = 0, sections_taken_ = 0;
  std::deque<PendingMetrics> pending_;
  int64_t completed_ = 0;  // optimizer steps done
  int64_t reported_ = 0;   // steps whose metrics were read
  int64_t samples_ = 0;    // of those steps, over all ranks
  int64_t evaluations_ = 0, last_evaluated_step_ = -1, last_saved_step_ = -1;
  int64_t block_start_samples_ = 0, run_start_samples_ = 0;
  double run_begin_time_ = 0;
  std::unique_ptr<StopVote> stop_vote_;
  bool stop_agreed_ = false;    // on all ranks alike
  bool save_by_clock_ = false;  // output.save_every_minutes have passed, by rank 0's clock
  double last_save_time_ = 0;
  std::shared_ptr<c10::Event> step_begin_;  // GPU: where the clock of the oldest step in flight started
  double step_begin_time_ = 0, training_seconds_ = 0, block_seconds_ = 0;
  int64_t block_steps_ = 0, timed_steps_ = 0;
  int consecutive_skips_ = 0;
  int64_t steps_skipped_ = 0;  // of the steps reported
  bool block_open_ = false;
  double last_loss_ = 0;
  int64_t saturated_steps_ = 0, saturated_tensors_ = 0, next_saturation_report_ = 1;
  Console console_;
};

}  // namespace trireme
