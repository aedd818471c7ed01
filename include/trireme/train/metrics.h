#pragma once
// metrics.jsonl, the console line and their numbers. Rank 0 only.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace trireme {

struct TrainMetrics {
  int64_t step = 0, max_steps = 0, samples = 0, tokens = 0;
  double loss = 0, grad_norm = 0, lr = 0, step_time_s = 0, samples_per_s = 0, tokens_per_s = 0, memory_gib = 0;
  std::optional<double> mfu;                 // on GPUs with a known peak
  std::optional<int64_t> global_batch_size;  // rows of the step, in runs whose batch grows
};

struct EvalMetrics {
  int64_t step = 0, samples = 0;
  double loss = 0, seconds = 0;
  std::optional<double> mlm_accuracy;  // BERT: fraction of the masked tokens predicted right
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

 private:
  void line(const std::string& text);
  std::unique_ptr<LineFile> lines_;
};

/// At most 120 columns: step, loss, grad norm, lr, step time, samples/s, tokens/s, MFU, memory, ETA.
std::string console_line(const TrainMetrics& metrics, double eta_seconds);
std::string console_line(const EvalMetrics& metrics, std::optional<double> target_loss,
                         std::optional<double> target_accuracy);

}  // namespace trireme
