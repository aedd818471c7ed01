#pragma once
// Private to train/: how a run ended: summary.json, the last line of metrics.jsonl, and what the console says.

#include "metrics.h"
#include "trireme/config/config.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// Sums over the steps and evaluations of a process.
struct RunTotals {
  int64_t steps = 0, rows = 0, losses = 0;
  double step_seconds = 0, flops = 0, loss_sum = 0;  // losses, loss_sum: of steps with targets and a finite loss
  std::optional<EvalMetrics> first, best, last;      // evaluations of the run, also before a resume
  std::optional<EvalMetrics> test;
  double last_loss = 0;  // of the newest step with targets
  void add(const TrainMetrics& metrics);
  /// Best: the highest accuracy where there is one, else the lowest loss.
  void add(const EvalMetrics& evaluation);
};

enum class RunEnd { kDone, kTarget, kPatience, kSignal, kMaxTime, kFailed };
/// "done", "target", "patience", "signal", "max_time", "failed".
const char* run_end_word(RunEnd end);

struct RunSummary {
  RunEnd end = RunEnd::kDone;
  int exit_code = 0;
  std::string reason;  // of a stop or a failure: a sentence
  int64_t step = 0, max_steps = 0, samples = 0, tokens = 0, ranks = 1;
  int64_t resumed_after = 0;             // steps done before this process
  double runtime_s = 0;                  // of this process, from before its first step, evaluations and saves included
  double samples_per_s = 0;              // over the runtime
  double epoch = 0;                      // passes over data.train
  double tokens_per_step_row = 0;        // data.seq_length
  std::optional<double> peak_flops;      // of a rank's device, where it is known
  double peak_memory = 0;                // bytes, rank 0
  std::optional<double> planned_memory;  // bytes; on GPUs
  std::optional<double> target_loss, target_accuracy;
  bool target_reached = false;
  std::filesystem::path output;
  std::vector<std::string> files;  // in output
  std::string next;                // a command to type
  RunTotals totals;

  double steps_per_s() const;
  /// Over the time of the steps only; nullopt if no step was timed.
  std::optional<double> tokens_per_s_per_rank() const;
  std::optional<double> mfu() const;
  std::optional<double> train_loss() const;  // mean over the steps of this process with targets
};

/// Folder in output.dir of output.keep_best.
inline constexpr const char* kBestFolder = "best";

/// `{"event":"end",…}` on one line.
std::string summary_json(const RunSummary& summary);
/// The summary as text: a block of lines, and the line of a dict that transformers' Trainer prints.
std::vector<std::string> summary_lines(const RunSummary& summary);

/// The files that a run has left in `output`, folders with a slash; only existing files.
std::vector<std::string> left_files(const std::filesystem::path& output);
/// Advice on the next command after a run that ended with `end`.
std::string next_command(const Config& config, RunEnd end, int exit_code);

}  // namespace trireme
