#pragma once
// Private to train/: a file of lines; a full disk does not end the run.

#include "trireme/base/append_file.h"

#include <string>

namespace trireme {

class LineFile : public AppendFile {
 public:
  LineFile() : AppendFile("lines") {}
  /// Once. `append`: keeps the file's lines, and cuts off a last line without an end. WriteError when the file cannot
  /// be opened.
  void open(const std::filesystem::path& path, bool append);
  /// `text` without an end of line.
  void write(const std::string& text) { AppendFile::write(text + '\n'); }

 private:
  void cut_unfinished_line() const;
};

}  // namespace trireme
