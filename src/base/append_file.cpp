#include "trireme/base/append_file.h"

#include "trireme/base/error.h"
#include "trireme/base/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace trireme {

void AppendFile::open(const std::filesystem::path& path, bool append) {
  TRIREME_CHECK(descriptor_ < 0, path_.string(), " is open already");
  path_ = path;
  descriptor_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC | (append ? 0 : O_TRUNC), 0644);
  if (descriptor_ < 0)
    throw WriteError(fmt::format("cannot open {} for writing: {}", path.string(), std::strerror(errno)));
}

AppendFile::~AppendFile() {
  if (descriptor_ < 0) return;
  if (!write_waiting())
    log_warn(fmt::format("{} lacks the last {} {} of this run, which could not be written: {}", path_.string(),
                         waiting_.size(), records_, std::strerror(errno)));
  if (is_elsewhere()) log_warn(elsewhere());
  close(descriptor_);
}

bool AppendFile::is_elsewhere() const {
  struct stat open{}, there{};
  if (fstat(descriptor_, &open) != 0) return false;
  return ::stat(path_.c_str(), &there) != 0 || there.st_ino != open.st_ino || there.st_dev != open.st_dev;
}

std::string AppendFile::elsewhere() const {
  struct stat open{}, there{};
  const bool removed = fstat(descriptor_, &open) == 0 && open.st_nlink == 0;
  const bool replaced = removed && ::stat(path_.c_str(), &there) == 0 && there.st_size > 0;  // as sed -i does
  const auto told = [&](const char* what, const std::string& left) {
    return fmt::format("{} was {} while the run wrote it: {}", path_.string(), what, left);
  };
  if (replaced)
    return told("replaced", fmt::format("of the {} up to here those are left that the new file has", records_));
  if (removed) return told("removed", fmt::format("the {} up to here are lost", records_));
  return told("moved", fmt::format("the {} up to here are in the moved file", records_));
}

/// As a log that is rotated: the file is made again, and an empty one gets its head. Where that fails, the open one
/// takes the records.
void AppendFile::follow_path() {
  const int made = is_elsewhere() ? ::open(path_.c_str(), O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0644) : -1;
  if (made >= 0) {
    log_warn(elsewhere() + ". The next ones are in the file of the name");
    close(std::exchange(descriptor_, made));
  }
  const bool empty = lseek(descriptor_, 0, SEEK_END) == 0, head_waits = !waiting_.empty() && waiting_.front() == head_;
  if (empty && !head_.empty() && !head_waits) waiting_.push_front(head_);
}

void AppendFile::write(std::string record) {
  follow_path();
  if (headed_ && head_.empty()) head_ = record;
  waiting_.push_back(std::move(record));
  if (write_waiting()) {
    if (failing_)
      log_info(
          fmt::format("{} is written again, with {} {} that were kept in memory", path_.string(), kept_, records_));
    failing_ = false;
    return;
  }
  if (!failing_)
    log_warn(fmt::format(
        "cannot write to {}: {}. The run goes on; its {} are kept in memory and written when there is room again",
        path_.string(), std::strerror(errno), records_));
  failing_ = true;
  kept_ = waiting_.size();
}

void AppendFile::sync() {
  if (fdatasync(descriptor_) != 0 && errno != EINVAL && !std::exchange(sync_failed_, true))
    log_warn(fmt::format("cannot sync {}: {}", path_.string(), std::strerror(errno)));
}

bool AppendFile::write_waiting() {
  while (!waiting_.empty()) {
    if (!append(waiting_.front())) return false;
    waiting_.pop_front();
  }
  return true;
}

/// False with errno: nothing of the record is in the file.
bool AppendFile::append(const std::string& record) {
  const off_t begin = lseek(descriptor_, 0, SEEK_END);
  for (size_t done = 0; done < record.size();) {
    const ssize_t written = ::write(descriptor_, record.data() + done, record.size() - done);
    if (written > 0) {
      done += static_cast<size_t>(written);
      continue;
    }
    if (written < 0 && errno == EINTR) continue;
    const int error = written < 0 ? errno : ENOSPC;
    if (done > 0 && ftruncate(descriptor_, begin) != 0)
      log_warn(fmt::format("{}: part of the last of its {} could not be removed: {}", path_.string(), records_,
                           std::strerror(errno)));
    errno = error;
    return false;
  }
  return true;
}

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
