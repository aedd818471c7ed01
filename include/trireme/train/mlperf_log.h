#pragma once
// MLPerf training log (mlcommons/logging): `:::MLLOG {json}` lines on stdout and in mllog.log, rank 0.
// Keys and order: the llama2_70b_lora submissions of rounds 5.0 and 5.1.

#include "trireme/config/config.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

class MlperfLog {
 public:
  using Metadata = std::vector<std::pair<std::string, std::string>>;  // values are JSON text

  /// Does nothing at all when `path` is empty (logging.mlperf: false, or not rank 0).
  explicit MlperfLog(const std::filesystem::path& path);

  void event(const char* key, const std::string& json_value, const Metadata& metadata = {}, int line = __builtin_LINE(),
             const char* file = __builtin_FILE());
  void start(const char* key, const Metadata& metadata = {}, int line = __builtin_LINE(), const char* file = __builtin_FILE());
  void end(const char* key, const Metadata& metadata = {}, int line = __builtin_LINE(), const char* file = __builtin_FILE());
  bool enabled() const { return enabled_; }

 private:
  void write(const char* type, const char* key, const std::string& value, const Metadata& metadata, const char* file, int line);
  bool enabled_ = false;
  std::ofstream out_;
};

/// The hyper-parameter block between init_start and init_stop.
void log_mlperf_configuration(MlperfLog& log, const Config& config, int64_t train_samples, int64_t eval_samples,
                              int64_t accumulation_steps, int nodes);

}  // namespace trireme
