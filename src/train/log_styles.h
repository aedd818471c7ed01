#pragma once
// Private to train/: what a run leaves for the readers of other trainers' logs: fms-fsdp's report lines, TensorBoard's
// scalars, and the files of NeMo's results folder. Rank 0, but for NeMo's messages.

#include "metrics.h"
#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/formats/tensorboard/event_file.h"

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>

namespace trireme {

/// logging.style fms and fms_2024: the report of a step interval under the labels that fms-fsdp prints, one line each.
///
/// The labels and their order are as in fms-fsdp's train_utils.py: `fms` at its HEAD, `fms_2024` of March 2024, which
/// the AWS test case has, too. Loss and gradient norm are means over the interval. Differences: the learning rate is
/// the one that the last step used (fms-fsdp prints the next step's), memory in bytes is the peak of the whole run
/// (there: of the last step), and "tokens seen" counts all ranks' tokens in both.
class FmsReport {
 public:
  /// `tokens_per_rank`: of one step. `now`: steady_seconds() before the first step of this process.
  FmsReport(bool labels_of_2024, double tokens_per_rank, int64_t ranks, double now);
  void add(const TrainMetrics& metrics);
  /// The interval since the last call as lines with '\n' between them. At least one step was added since.
  std::string lines(double now, int64_t reserved_bytes, int64_t allocated_bytes);

 private:
  bool labels_of_2024_;
  double tokens_per_rank_, ranks_, run_start_, interval_start_;
  int64_t run_steps_ = 0, interval_steps_ = 0, interval_losses_ = 0;
  double loss_sum_ = 0, grad_norm_sum_ = 0;
  TrainMetrics last_;
};

/// logging.tensorboard: tags train/..., perf/..., eval/... and test/... in output.dir/tensorboard. logging.style nemo:
/// NeMo's tags (reduced_train_loss, train_step_timing ...) in output.dir itself. The axis is the number of steps done.
/// Steps are written where a console line of them is due.
class TensorboardLog {
 public:
  /// Where event files of this configuration go; empty: none are written.
  static std::filesystem::path folder(const Config& config);

  /// `completed`: steps that were done before this process; later steps in TensorBoard are withdrawn. `description`: of
  /// the run, as text.
  TensorboardLog(const Config& config, int64_t completed, const std::string& description);

  void step(const TrainMetrics& metrics, bool due);
  void evaluation(const EvalMetrics& metrics);
  void test(const EvalMetrics& metrics);
  /// What the model answers to a prompt, as the text samples/`number`.
  void sample(int64_t step, size_t number, const std::string& prompt, const std::string& text);
  void flush() { file_.flush(); }

 private:
  void evaluated(const EvalMetrics& metrics, const char* name, const char* nemo_name);
  static constexpr size_t kTimedSteps = 5;  // NeMo's train_step_timing is the mean of so many
  bool nemo_, fp16_;
  EventFile file_;
  std::deque<double> newest_seconds_;
};

/// logging.style nemo: the files of NeMo's results folder (exp_manager) in output.dir.
///
/// Whether `name` is one of these files: cmd-args.log, git-info.log, hparams.yaml, events.out.tfevents.*,
/// nemo_log_globalrank-<g>_localrank-<l>.txt, nemo_error_log.txt, lightning_logs.txt.
bool is_results_file(const std::string& name);

/// Collective. Rank 0 moves what an earlier start has left of them to run_<k>/, k counting from 0, and writes
/// cmd-args.log, git-info.log ("commit hash: ..." of the build) and hparams.yaml. Messages of every rank go to its own
/// nemo_log file from here on, warnings of rank 0 to nemo_error_log.txt, too. CollectiveError (kCannotWrite).
void open_nemo_results(const Config& config, World& world);

/// Appends a line to lightning_logs.txt; a failure is a warning. Rank 0.
void write_lightning_log(const std::filesystem::path& output, const std::string& text);

}  // namespace trireme
