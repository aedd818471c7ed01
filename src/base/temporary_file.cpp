#include "trireme/base/temporary_file.h"

#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/hash.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kInfix = ".tmp-";
constexpr size_t kDigits = 16;

uint64_t random_number() {
  // Not seeded from clock or process ID, which can be equal in containers that start from one image.
  std::random_device entropy;
  return uint64_t{entropy()} << 32 | entropy();
}

/// Takes the exclusive lock without waiting. The lock belongs to the open file description: another description of the
/// same process conflicts with it, and it ends when the last copy of the descriptor is closed. Not flock(): the HDF5
/// library takes that lock on a file that it writes.
bool lock(int descriptor) {
  struct flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return fcntl(descriptor, F_OFD_SETLK, &whole) == 0;
}

bool has_name(int descriptor) {
  struct stat info{};
  return fstat(descriptor, &info) == 0 && info.st_nlink > 0;
}

/// Cannot remove the file of a living process: a process locks its file before it writes the first byte, and takes
/// another name if the lock is taken or the file was unlinked. Locks of other hosts are seen too, unless the storage is
/// mounted with host-local locks. There, if two hosts write the same target at the same time, one of them can lose its
/// file, and its commit() fails.
bool remove_if_dead(const fs::path& path) {
  // O_NONBLOCK: a FIFO may have such a name.
  const int descriptor = open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return false;
  struct stat info{};
  const bool removed = fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
                       lock(descriptor) && unlink(path.c_str()) == 0;
  close(descriptor);
  return removed;
}

/// The kind of file that `path` is, links resolved; 0 if it does not exist.
mode_t kind_of(const fs::path& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 ? info.st_mode & S_IFMT : 0;
}

/// A file that is not replaced but written to: a device, a pipe, or a descriptor of a process (/dev/stdout).
bool is_written_to(const fs::path& path) {
  const mode_t kind = kind_of(path);
  return kind == S_IFCHR || kind == S_IFBLK || kind == S_IFIFO || (kind == S_IFREG && fs::is_symlink(path));
}

/// The file that a link names: the link stays. The link itself where it is a descriptor of a process, whose file may
/// have no name.
fs::path without_links(fs::path path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int links = 0; links < kMostLinks && fs::is_symlink(path, error); ++links) {
    const fs::path directory = path.has_parent_path() ? path.parent_path() : fs::path(".");
    if (fs::canonical(directory, error).string().starts_with("/proc/")) return path;
    path = directory / fs::read_symlink(path, error);
    if (error) break;
  }
  return path;
}

fs::path directory_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

/// The beginning of the temporary file's name. A device's directory is no place for files.
fs::path base_of(const fs::path& target) {
  return is_written_to(target) ? fs::temp_directory_path() / ("trireme-" + target.filename().string()) : target;
}

/// Writes what is in the file `from` to the device or pipe `to`. False with errno.
bool copy_into(const fs::path& from, const fs::path& to) {
  const int in = open(from.c_str(), O_RDONLY | O_CLOEXEC);
  // O_APPEND: a descriptor's file may have what was written to it before.
  const int out = in < 0 ? -1 : open(to.c_str(), O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC);
  std::vector<char> block(size_t{1} << 16);
  ssize_t left = 0, written = 0;
  bool good = out >= 0;
  while (good && (left = read(in, block.data(), block.size())) > 0) {
    for (const char* at = block.data(); good && left > 0; at += written, left -= written)
      if ((written = write(out, at, static_cast<size_t>(left))) < 0) {
        good = errno == EINTR;
        written = 0;
      }
  }
  good = good && left == 0;
  const int error = errno;
  if (in >= 0) close(in);
  if (out >= 0 && close(out) != 0 && good) return false;
  errno = error;
  return good;
}

}  // namespace

bool is_temporary(std::string_view name, std::string_view target) {
  const size_t length = kInfix.size() + kDigits;
  if (name.size() <= length || name.substr(name.size() - length, kInfix.size()) != kInfix) return false;
  const std::string_view digits = name.substr(name.size() - kDigits);
  return digits.find_first_not_of("0123456789abcdef") == std::string_view::npos &&
         (target.empty() || name.substr(0, name.size() - length) == target);
}

TemporaryFile::TemporaryFile(const fs::path& target) : target_(without_links(target)) {
  const fs::path base = base_of(target_);
  remove_dead_temporaries(directory_of(base), base.filename().string());
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt)
    if (create()) return;
  errno = EEXIST;
  write_failed("create a temporary file for", target_);
}

/// False: the name is taken, or another process removed the file before it was locked.
bool TemporaryFile::create() {
  path_ = base_of(target_);
  path_ += std::string(kInfix) + hex64(random_number());
  descriptor_ = open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    if (errno == EEXIST) return false;
    write_failed("create", target_);
  }
  const bool taken = !lock(descriptor_) && (errno == EAGAIN || errno == EACCES);  // other errors: no locks here
  if (!taken && has_name(descriptor_)) return true;
  close(std::exchange(descriptor_, -1));
  return false;
}

TemporaryFile::~TemporaryFile() {
  if (descriptor_ < 0) return;
  unlink(path_.c_str());
  close(descriptor_);
}

void TemporaryFile::commit() {
  TRIREME_CHECK(descriptor_ >= 0, "commit of ", target_.string(), " twice");
  const auto failed = [&](const char* what) {
    const int error = errno;
    unlink(path_.c_str());
    close(std::exchange(descriptor_, -1));
    errno = error;
    write_failed(what, target_);
  };
  if (is_written_to(target_)) {
    if (!copy_into(path_, target_)) failed("write to");
    unlink(path_.c_str());
    close(std::exchange(descriptor_, -1));
    return;
  }
  if (fsync(descriptor_) != 0) failed("write to");
  fault_point("file:commit");
  // The lock is held until the rename: other processes remove unlocked temporary files.
  if (rename(path_.c_str(), target_.c_str()) != 0) failed("write to");
  close(std::exchange(descriptor_, -1));
  const int directory = open(directory_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) write_failed("sync the directory of", target_);
  // EINVAL and ENOTSUP: file systems that cannot sync a directory; the rename itself has succeeded.
  const bool synced = fsync(directory) == 0 || errno == EINVAL || errno == ENOTSUP;
  const int error = errno;
  close(directory);
  errno = error;
  if (!synced) write_failed("sync the directory of", target_);
}

size_t remove_dead_temporaries(const fs::path& directory, std::string_view target) {
  std::error_code error;
  size_t removed = 0;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (is_temporary(entry->path().filename().string(), target)) removed += remove_if_dead(entry->path());
  return removed;
}

}  // namespace trireme
