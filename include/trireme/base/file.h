#pragma once
// Files: read-only maps, atomic writes, and paths that cannot leave their root.

#include "trireme/base/bytes.h"
#include "trireme/base/error.h"
#include "trireme/base/temporary_file.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// The system could not open or read what is there, for now or for this user: it tells nothing of the content.
/// MappedFile and read_text_file() throw it too.
struct StorageError : Error {
  using Error::Error;
};
/// Whether `error` tells nothing of what is at a path: none of those that say that no such file is there.
bool is_storage_failure(int error);
/// Throws "cannot WHAT PATH: reason", a StorageError where is_storage_failure(error), with `code`.
[[noreturn]] void read_failed(ExitCode code, const char* what, const std::filesystem::path& path, int error);

/// A whole file mapped read-only. Movable; unmaps on destruction. Zero-length files give an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws Error with `code` (DataError / ModelError at the caller's choice) naming the path and the system's reason.
  MappedFile(const std::filesystem::path& path, ExitCode code);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return as_text(bytes()); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int slot_ = -1;  // in the table of mapped_place()
};

/// The file of a MappedFile that `address` lies in, for a SIGBUS: the file became shorter, or its storage fails.
struct MappedPlace {
  const char* path = nullptr;  // null: in none
  int exit_code = 0;           // of errors of the file
};
/// Async-signal-safe. Knows the first 1,024 files that are mapped at a time, and the first 511 bytes of a path.
MappedPlace mapped_place(const void* address);

/// Reads a whole (small) file; at most `max_bytes`, else an Error with `code`.
std::string read_text_file(const std::filesystem::path& path, ExitCode code, size_t max_bytes = 64 << 20);

/// The first bytes of a regular file, at most `most`; none of anything else. A FIFO would block.
std::string file_head(const std::filesystem::path& path, size_t most);

/// Writes to a temporary name in the same directory (TemporaryFile). commit() publishes the file: fsync, rename, fsync
/// of the directory. Without commit() the destructor removes the temporary file. The constructor removes temporary
/// files that dead processes left for the same target (TemporaryFile). Every failure (disk full, read-only, short
/// write) is a WriteError naming path and reason.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path) : file_(path) {}
  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  uint64_t size() const { return size_; }
  void commit() { file_.commit(); }

 private:
  TemporaryFile file_;
  uint64_t size_ = 0;
};

/// AtomicFile with this content.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

/// Creates a directory and its parents; WriteError with the reason otherwise.
void make_directories(const std::filesystem::path& path);
/// The inputs, and in place of a directory its files whose names begin and end so, without temporary ones; sorted by
/// file name, then by path. DataError for a directory that cannot be listed or has no such file, with `expected` behind
/// it.
std::vector<std::filesystem::path> files_of(const std::vector<std::filesystem::path>& inputs, std::string_view prefix,
                                            std::string_view suffix, const std::string& expected = "");

/// `path` without "." and "..", unless that would name another file: after a symbolic link, ".." is the parent of the
/// link's target.
std::filesystem::path tidy_path(const std::filesystem::path& path);

/// Whether both names lead to one file, also where it is not there yet. Empty names lead nowhere.
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b);

/// Returns root / relative. Error with `code` when `relative` is absolute, contains a NUL byte, is longer than 4,096
/// bytes, or lies outside root after its symbolic links are resolved. Links of Hugging Face's cache
/// (snapshots/<revision>/name -> blobs/<hash>) are allowed. For names that come from files (index.json, manifests), not
/// for paths on the user's command line.
std::filesystem::path safe_join(const std::filesystem::path& root, std::string_view relative, ExitCode code);

}  // namespace trireme
