#pragma once
// A file that a run appends to; a full disk does not end the run.

#include <cstddef>
#include <deque>
#include <filesystem>
#include <string>
#include <utility>

namespace trireme {

/// Appends records to a file; the file has each record whole or not at all. A record that cannot be written (disk full,
/// quota, I/O error) is kept in memory and the run goes on; a warning reports the first such record. Before a later
/// record is written, the kept records are tried again; a message reports when all are written. A file that is moved or
/// removed meanwhile is made again at its path, with a warning.
class AppendFile {
 public:
  /// `records`: what messages call them, "lines".
  /// `headed`: a file that is made again or cut to nothing begins with the first record of this object.
  explicit AppendFile(std::string records = "records", bool headed = false)
      : records_(std::move(records)), headed_(headed) {}
  /// Call it once. `append`: the file's content stays. WriteError when the file cannot be opened.
  void open(const std::filesystem::path& path, bool append);
  bool is_open() const { return descriptor_ >= 0; }
  const std::filesystem::path& path() const { return path_; }
  /// Tries once more to write the kept records; a warning reports how many are lost.
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  void write(std::string record);
  size_t waiting() const { return waiting_.size(); }
  /// Makes what is written durable; a warning where that fails first.
  void sync();
  /// Tries to write the kept records. False with errno: some are kept still.
  bool write_waiting();

 protected:
  int descriptor() const { return descriptor_; }

 private:
  bool append(const std::string& record);
  bool is_elsewhere() const;
  std::string elsewhere() const;
  void follow_path();
  std::string records_, head_;
  bool headed_;
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::deque<std::string> waiting_;
  bool failing_ = false, sync_failed_ = false;
  size_t kept_ = 0;  // records that have waited since the file failed
};

/// An AppendFile of lines of text.
class LineFile : public AppendFile {
 public:
  explicit LineFile(bool headed = false) : AppendFile("lines", headed) {}
  /// Call it once. `append`: the file's lines stay, but a last line without an end is cut off. WriteError when the file
  /// cannot be opened.
  void open(const std::filesystem::path& path, bool append);
  /// `text` without an end of line.
  void write(const std::string& text) { AppendFile::write(text + '\n'); }

 private:
  void cut_unfinished_line() const;
};

}  // namespace trireme
