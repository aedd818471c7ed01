#pragma once
// A progress line on stderr for work of known size: redrawn on a terminal, otherwise a new line every 10 s, and nothing
// during the first second.

#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

class Progress {
 public:
  /// `total` in `unit`s ("MB", "rows"); values passed to update() are divided by `scale` for
  /// display.
  Progress(std::string what, double total, std::string unit, double scale = 1.0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void update(double done);
  /// Clears the line on a terminal. Called by the destructor as well.
  void finish();

 private:
  std::string what_, unit_;
  double total_, scale_, start_, last_;
  bool terminal_, drawn_ = false;
};

/// Bytes of the files, of directories those of document_files(). DataError for one that cannot be read.
double total_size(const std::vector<std::filesystem::path>& files);

}  // namespace trireme
