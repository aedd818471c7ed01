#pragma once
// metrics.jsonl, the console line and their numbers. Rank 0 only.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct TrainMetrics {
  int64_t step = 0, max_steps = 0, samples = 0, tokens = 0;
  double loss = 0, grad_norm = 0, lr = 0, step_time_s = 0, samples_per_s = 0, tokens_per_s = 0, memory_gib = 0;
  std::optional<double> mfu;                 // on GPUs with a known peak
  std::optional<int64_t> global_batch_size;  // rows of the step, in runs whose batch grows
  // Not in metrics.jsonl: rows of data.train, of the run so far and of this step; whole passes over them.
  int64_t rows = 0, step_rows = 0, epoch = 0;
  int64_t skipped_steps = 0;  // so far, this one included
  double loss_scale = 1;      // after the step
};

struct EvalMetrics {
  int64_t step = 0, samples = 0;
  double loss = 0, seconds = 0;
  std::optional<double> mlm_accuracy = {};  // BERT: fraction of the masked tokens predicted right
  int64_t passes = 0;                       // forward passes of a rank; not in metrics.jsonl
};

class LineFile;

/// One JSON object a line, appended. Numbers keep all their digits; NaN and infinities are the strings "nan", "inf",
/// "-inf". Lines that cannot be written are kept in memory until they can be: a full disk does not end the run.
class MetricsFile {
 public:
  /// `resume_step`: a resumed run goes on after the last line with a step <= this. `evaluated`: the evaluation after
  /// that step is done; otherwise its line is removed, because the evaluation is repeated. WriteError when the file
  /// cannot be opened.
  MetricsFile(const std::filesystem::path& path, std::optional<int64_t> resume_step, bool evaluated);
  ~MetricsFile();
  void write_run(const std::string& json_object);
  void write(const TrainMetrics& metrics);
  void write(const EvalMetrics& metrics);
  /// The evaluation on data.test: "event":"test".
  void write_test(const EvalMetrics& metrics);
  /// Evaluations of the run before it was resumed, those of lines that were kept.
  const std::vector<EvalMetrics>& earlier_evaluations() const { return earlier_; }

 private:
  void line(const std::string& text);
  void write(const char* event, const EvalMetrics& metrics);
  std::vector<EvalMetrics> earlier_;
  std::unique_ptr<LineFile> lines_;
};

/// Step, loss, grad norm, lr, step time, samples/s, tokens/s, MFU, memory, ETA (less than half a second: none). Where
/// that is wider than `columns` (0: any width) the parts that say least are left out: samples/s, memory, MFU, grad
/// norm, lr.
std::string console_line(const TrainMetrics& metrics, double eta_seconds, size_t columns = 0);
/// "ETA 41 s", "ETA 5m07s"; empty below half a second.
std::string eta_text(double seconds);
/// "test after step 100 | loss 2.50000 | 1.2 s"
std::string test_console_line(const EvalMetrics& metrics);
std::string console_line(const EvalMetrics& metrics, std::optional<double> target_loss,
                         std::optional<double> target_accuracy);

}  // namespace trireme
