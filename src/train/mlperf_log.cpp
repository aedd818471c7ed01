#include "mlperf_log.h"

#include "line_file.h"
#include "trireme/base/process.h"
#include "trireme/base/time.h"

#include <fmt/format.h>

namespace trireme {

MlperfLog::MlperfLog(const std::filesystem::path& path) : enabled_(!path.empty()) {
  if (!enabled_) return;
  lines_ = std::make_unique<LineFile>();
  lines_->open(path, /*append=*/true);
}

MlperfLog::~MlperfLog() = default;

void MlperfLog::write(const char* type, const char* key, const std::string& value, const Metadata& metadata,
                      const char* file, int line) {
  if (!enabled_) return;
  std::string fields =
      fmt::format(R"("file": "{}", "lineno": {})", std::filesystem::path(file).filename().string(), line);
  for (const auto& [name, json] : metadata) fields += fmt::format(R"(, "{}": {})", name, json);
  const std::string text = fmt::format(
      R"(:::MLLOG {{"namespace": "", "time_ms": {}, "event_type": "{}", "key": "{}", "value": {}, "metadata": {{{}}}}})",
      unix_milliseconds(), type, key, value, fields);
  print_line(text);
  lines_->write(text);
}

void MlperfLog::event(const char* key, const std::string& value, const Metadata& metadata, int line, const char* file) {
  write("POINT_IN_TIME", key, value, metadata, file, line);
}
void MlperfLog::start(const char* key, const Metadata& metadata, int line, const char* file) {
  write("INTERVAL_START", key, "null", metadata, file, line);
}
void MlperfLog::end(const char* key, const Metadata& metadata, int line, const char* file) {
  write("INTERVAL_END", key, "null", metadata, file, line);
}

void MlperfLog::start_with(const char* key, const std::string& value, const Metadata& metadata, int line,
                           const char* file) {
  write("INTERVAL_START", key, value, metadata, file, line);
}
void MlperfLog::end_with(const char* key, const std::string& value, const Metadata& metadata, int line,
                         const char* file) {
  write("INTERVAL_END", key, value, metadata, file, line);
}

}  // namespace trireme
