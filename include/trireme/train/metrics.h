#pragma once
// metrics.jsonl, the console line and their numbers. Rank 0 only.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace trireme {

struct TrainMetrics {
  int64_t step = 0, max_steps = 0, samples = 0, tokens = 0;
  double loss = 0, grad_norm = 0, lr = 0, step_time_s = 0, samples_per_s = 0, tokens_per_s = 0, memory_gib = 0;
  std::optional<double> mfu;  // on GPUs with a known peak
};

struct EvalMetrics {
  int64_t step = 0, samples = 0;
  double loss = 0, seconds = 0;
  std::optional<double> mlm_accuracy;  // BERT: part of the masked words that were found
};

/// One JSON object a line, appended and flushed. Numbers keep all their digits; NaN and infinities are the strings
/// "nan", "inf", "-inf".
class MetricsFile {
 public:
  /// `append`: a resumed run goes on after the last line with step <= `resume_step`.
  MetricsFile(const std::filesystem::path& path, std::optional<int64_t> resume_step);
  void write_run(const std::string& json_object);
  void write(const TrainMetrics& metrics);
  void write(const EvalMetrics& metrics);

 private:
  void line(const std::string& text);
  std::filesystem::path path_;
  std::ofstream out_;
};

/// At most 120 columns: step, loss, grad norm, lr, step time, samples/s, tokens/s, MFU, memory, ETA.
std::string console_line(const TrainMetrics& metrics, double eta_seconds);
std::string console_line(const EvalMetrics& metrics, std::optional<double> target_loss,
                         std::optional<double> target_accuracy);

}  // namespace trireme
