#pragma once
// Private to train/: the MLPerf training log (mlcommons/logging): `:::MLLOG {json}` lines on stdout and in mllog.log,
// rank 0, in the form of one benchmark's submissions.

#include "metrics.h"
#include "trireme/base/append_file.h"
#include "trireme/config/config.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

class MlperfLog {
 public:
  using Metadata = std::vector<std::pair<std::string, std::string>>;  // values are JSON text

  /// Does nothing at all when `path` is empty (logging.mlperf: false, or not rank 0). WriteError when the file cannot
  /// be opened; a line that cannot be written later is kept in memory until it can. `append`: the run may go on, and
  /// decide_earlier_lines() says whether it does.
  MlperfLog(const std::filesystem::path& path, bool append);
  /// Removes the lines of earlier starts where the run begins anew; warns where it goes on. WriteError.
  void decide_earlier_lines(bool afresh);

  void event(const char* key, const std::string& json_value, const Metadata& metadata = {}, int line = __builtin_LINE(),
             const char* file = __builtin_FILE());
  /// The beginning and the end of an interval, most without a value.
  void start(const char* key, const Metadata& metadata = {}, const std::string& json_value = "null",
             int line = __builtin_LINE(), const char* file = __builtin_FILE());
  void end(const char* key, const Metadata& metadata = {}, const std::string& json_value = "null",
           int line = __builtin_LINE(), const char* file = __builtin_FILE());
  bool enabled() const { return lines_.has_value(); }
  /// WriteError where lines could not be written or are gone: the file is no result then.
  void check_whole();

 private:
  void write(const char* type, const char* key, const std::string& value, const Metadata& metadata, const char* file,
             int line);
  std::optional<LineFile> lines_;     // none: the log is off
  uint64_t bytes_ = 0, earlier_ = 0;  // of the file with the lines that wait, and of those of earlier starts
};

/// Facts beside the configuration for the hyper-parameter block between init_start and init_stop.
struct MlperfRun {
  int64_t train_samples = 0, eval_samples = 0, accumulation_steps = 1;
  int nodes = 1;
  std::string division;              // "closed" or "open"
  std::vector<std::string> tensors;  // names of the weights that are loaded
};

/// Keys, values and order are as in a benchmark's submissions. Nothing happens when the log is off.
class MlperfEvents {
 public:
  explicit MlperfEvents(MlperfLog& log) : log_(log) {}
  virtual ~MlperfEvents() = default;
  virtual void configuration(const Config& config, const MlperfRun& run) = 0;
  virtual void start_run() = 0;
  virtual void start_block(int64_t samples) = 0;
  virtual void end_block(const MlperfBlock& block) = 0;
  virtual void train_loss(const TrainMetrics& metrics) = 0;
  virtual void start_evaluation(int64_t samples) = 0;
  virtual void end_evaluation(const EvalMetrics& metrics) = 0;
  /// `status`: "success" or "aborted"; `samples_per_second` over the whole run.
  virtual void end_run(const char* status, int64_t step, int64_t samples, double samples_per_second) = 0;
  void decide_earlier_lines(bool afresh) { log_.decide_earlier_lines(afresh); }
  void check_whole() { log_.check_whole(); }

 protected:
  MlperfLog& log_;
};

/// With a lora section llama2_70b_lora, rounds 5.0 and 5.1; without one llama31_8b, round 5.1.
std::unique_ptr<MlperfEvents> make_llama_events(MlperfLog& log, const Config& config);
/// bert, rounds 4.1 and 5.0.
std::unique_ptr<MlperfEvents> make_bert_events(MlperfLog& log, const Config& config);

}  // namespace trireme
