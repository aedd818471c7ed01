#include "data/prepare/progress.h"

#include "data/stream/documents.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"

#include <fmt/format.h>
#include <unistd.h>
#include <cstdio>

namespace trireme {

Progress::Progress(std::string what, double total, std::string unit, double scale)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      scale_(scale),
      start_(steady_seconds()),
      last_(start_),
      terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { finish(); }

void Progress::update(double done) {
  const double now = steady_seconds();
  const double interval = terminal_ ? (drawn_ ? 0.2 : 1.0) : 10.0;
  if (now - last_ < interval || done <= 0) return;
  last_ = now;
  const double rate = done / (now - start_);
  const double left = total_ > done ? (total_ - done) / rate : 0.0;
  const int digits = scale_ == 1.0 ? 0 : 1;
  const std::string line = fmt::format(
      "{}: {:.{}f} of {:.{}f} {} ({:.0f} %), {:.2f} {}/s, {} left", what_, done / scale_, digits, total_ / scale_,
      digits, unit_, total_ > 0 ? 100 * done / total_ : 100.0, rate / scale_, unit_, format_duration(left));
  std::fputs(fmt::format("{}{}{}", terminal_ ? "\r\033[K" : "", line, terminal_ ? "" : "\n").c_str(), stderr);
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::finish() {
  if (terminal_ && drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

double total_size(const std::vector<std::filesystem::path>& files) {
  double total = 0;
  for (const std::filesystem::path& path : files) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      total += total_size(document_files(path));
      continue;
    }
    if (std::filesystem::exists(path, error)) (void)MappedFile(path, ExitCode::kData);  // refuses a FIFO
    total += static_cast<double>(std::filesystem::file_size(path, error));
    if (error) throw DataError(fmt::format("{}: cannot be read: {}", path.string(), error.message()));
  }
  return total;
}

}  // namespace trireme
