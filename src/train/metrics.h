#pragma once
// Private to train/: the numbers of steps and evaluations, and metrics.jsonl. Rank 0.

#include "trireme/base/append_file.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// Values of TaskFacts::metrics by their names.
using NamedMetrics = std::vector<std::pair<std::string, double>>;

struct TrainMetrics {
  int64_t step = 0, max_steps = 0, samples = 0, tokens = 0;
  double loss = 0, grad_norm = 0, lr = 0, step_time_s = 0, samples_per_s = 0, tokens_per_s = 0, memory_gib = 0;
  std::optional<double> mfu;                 // on GPUs with a known peak
  std::optional<int64_t> global_batch_size;  // rows of the step, in runs whose batch grows
  int64_t rows = 0, step_rows = 0;           // of data.train, of the run so far and of this step; not in metrics.jsonl
  double epoch = 0;                          // passes over them; not in metrics.jsonl
  double flops = 0;                          // of the step
  bool has_loss = true;       // false: no row of the step has a target; the loss is 0 and counts in no mean
  int64_t skipped_steps = 0;  // so far, this one included
  double loss_scale = 1;      // after the step
  NamedMetrics more = {};     // in metrics.jsonl
};

struct EvalMetrics {
  int64_t step = 0, samples = 0;
  double loss = 0, seconds = 0;
  std::optional<double> mlm_accuracy = {};  // BERT: fraction of the masked tokens predicted right
  int64_t passes = 0;                       // forward passes of a rank; not in metrics.jsonl
  NamedMetrics more = {};                   // not of evaluations before a resume

  /// The higher, the better: the accuracy where there is one, else the negative loss.
  double score() const { return mlm_accuracy.value_or(-loss); }
};

/// The steps between two evaluations, as MLPerf logs count them.
struct MlperfBlock {
  int64_t step = 0, samples = 0;  // after it
  int64_t steps = 0;              // in it
  double seconds = 0, loss = 0, samples_per_second = 0;
};

/// The event of a resume from which on evaluations read other rows.
inline constexpr const char* kOtherEvaluation = "other_evaluation";

/// One JSON object a line, appended. Numbers keep all their digits; NaN and infinities are the strings "nan", "inf",
/// "-inf". Lines that cannot be written are kept in memory until they can be: a full disk does not end the run.
class MetricsFile {
 public:
  /// `resume_step`: a resumed run appends after the last line with a step <= this. `evaluated`: the evaluation after
  /// that step is done; otherwise its line is removed, because the evaluation is repeated. WriteError when the file
  /// cannot be opened.
  MetricsFile(const std::filesystem::path& path, std::optional<int64_t> resume_step, bool evaluated);
  void write_run(const std::string& json_object) { lines_.write(json_object); }
  void sync() { lines_.sync(); }
  void write(const TrainMetrics& metrics);
  void write(const EvalMetrics& metrics);
  /// The evaluation on data.test: "event":"test".
  void write_test(const EvalMetrics& metrics);
  /// Evaluations of the run before the resume, from the lines that were kept, behind the last kOtherEvaluation.
  const std::vector<EvalMetrics>& earlier_evaluations() const { return earlier_; }

 private:
  void write(const char* event, const EvalMetrics& metrics);
  std::vector<EvalMetrics> earlier_;
  LineFile lines_{/*headed=*/true};  // the line of the run
};

}  // namespace trireme
