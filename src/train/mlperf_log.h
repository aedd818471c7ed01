#pragma once
// MLPerf training log (mlcommons/logging): `:::MLLOG {json}` lines on stdout and in mllog.log, rank 0.
// Which events there are and in what order is a benchmark's own: mlperf_events.h.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

class LineFile;

class MlperfLog {
 public:
  using Metadata = std::vector<std::pair<std::string, std::string>>;  // values are JSON text

  /// Does nothing at all when `path` is empty (logging.mlperf: false, or not rank 0). WriteError when the file cannot
  /// be opened; a line that cannot be written later is kept in memory until it can.
  explicit MlperfLog(const std::filesystem::path& path);
  ~MlperfLog();

  void event(const char* key, const std::string& json_value, const Metadata& metadata = {}, int line = __builtin_LINE(),
             const char* file = __builtin_FILE());
  void start(const char* key, const Metadata& metadata = {}, int line = __builtin_LINE(),
             const char* file = __builtin_FILE());
  void end(const char* key, const Metadata& metadata = {}, int line = __builtin_LINE(),
           const char* file = __builtin_FILE());
  /// The same with a value, which few events of intervals have.
  void start_with(const char* key, const std::string& json_value, const Metadata& metadata, int line = __builtin_LINE(),
                  const char* file = __builtin_FILE());
  void end_with(const char* key, const std::string& json_value, const Metadata& metadata, int line = __builtin_LINE(),
                const char* file = __builtin_FILE());
  bool enabled() const { return enabled_; }

 private:
  void write(const char* type, const char* key, const std::string& value, const Metadata& metadata, const char* file,
             int line);
  bool enabled_ = false;
  std::unique_ptr<LineFile> lines_;
};

}  // namespace trireme
