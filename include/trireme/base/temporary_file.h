#pragma once
// Files that are written under a temporary name and renamed when they are complete, and the removal of temporary files
// that dead processes left.

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace trireme {

/// A file in the directory of `target`, named "TARGET.tmp-" and 16 random hexadecimal digits. commit() renames it to
/// `target`. A link stays: the file that it stands for is replaced. Devices, pipes and descriptors (/dev/stdout) are
/// not replaced: the file lies in the directory for temporary files, and commit() writes its content to them.
///
/// The creating process holds an exclusive advisory lock on the file until commit(). The kernel (on NFS: the server)
/// releases the lock when the process dies, so an unlocked temporary file has no living owner. A process ID in the name
/// would not show this: in a container the process has ID 1 at every start, and on shared storage the process may run
/// on another host.
class TemporaryFile {
 public:
  /// Removes temporary files that dead processes left for the same target, then creates the file. WriteError naming
  /// target and reason.
  explicit TemporaryFile(const std::filesystem::path& target);
  /// Removes the file unless it was committed.
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::filesystem::path& path() const { return path_; }
  /// Without links.
  const std::filesystem::path& target() const { return target_; }
  /// Open for writing; -1 once committed.
  int descriptor() const { return descriptor_; }
  /// fsync, rename over the target, fsync of the directory; or the content is written to the target. On failure the
  /// temporary file is removed; WriteError.
  void commit();

 private:
  bool create();
  std::filesystem::path target_, path_;
  int descriptor_ = -1;
};

/// Removes the files that TemporaryFile of dead processes left in `directory`: regular files of this user, with such a
/// name, that no process has locked. `target`: only those for that file. Where the file system has no locks nothing is
/// removed. Returns the number of removed files; throws nothing.
size_t remove_dead_temporaries(const std::filesystem::path& directory, std::string_view target = {});

}  // namespace trireme
