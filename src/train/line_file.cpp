#include "line_file.h"

#include "trireme/base/error.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace trireme {

void LineFile::open(const std::filesystem::path& path, bool append) {
  AppendFile::open(path, append);
  if (append) cut_unfinished_line();
}

/// Left by a process that was killed while it wrote.
void LineFile::cut_unfinished_line() const {
  off_t end = lseek(descriptor(), 0, SEEK_END);
  char block[4096];
  while (end > 0) {
    const auto size = static_cast<size_t>(std::min<off_t>(end, sizeof block));
    if (pread(descriptor(), block, size, end - static_cast<off_t>(size)) != static_cast<ssize_t>(size)) return;
    const auto* newline = static_cast<const char*>(memrchr(block, '\n', size));
    end -= static_cast<off_t>(size);
    if (newline == nullptr) continue;
    end += newline - block + 1;
    break;
  }
  if (ftruncate(descriptor(), end) != 0)
    throw WriteError(fmt::format("cannot write to {}: {}", path().string(), std::strerror(errno)));
}

}  // namespace trireme
