#pragma once
// Private to train/: a file of lines; a full disk does not end the run.

#include <deque>
#include <filesystem>
#include <string>

namespace trireme {

/// Lines appended to a file, each one whole in the file or not there. A line that cannot be written (disk full, quota,
/// I/O error) is kept in memory and the run goes on: a warning reports the first. Every later line tries to write
/// the kept ones before itself; a message reports when all are written.
class LineFile {
 public:
  LineFile() = default;
  /// Once. `append`: keeps the file's lines, and cuts off a last line without an end. WriteError when the file cannot
  /// be opened.
  void open(const std::filesystem::path& path, bool append);
  /// Tries once more to write the kept lines; a warning reports how many are lost.
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  /// `text` without an end of line.
  void write(const std::string& text);
  size_t waiting() const { return waiting_.size(); }

 private:
  bool write_waiting();
  bool append(const std::string& line);
  void cut_unfinished_line() const;
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::deque<std::string> waiting_;
  bool failing_ = false;
  size_t kept_ = 0;  // lines that have waited since the file failed
};

}  // namespace trireme
