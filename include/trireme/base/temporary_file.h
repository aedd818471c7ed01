#pragma once
// Files that are written under a temporary name and renamed when they are complete, and the removal of temporary files
// that dead processes left.

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace trireme {

/// A file in the directory of `target`, named "TARGET.tmp-" and 16 random hexadecimal digits. commit() renames it to
/// `target`. If `target` is a link, the file that it names is replaced. Devices, pipes and descriptors (/dev/stdout)
/// are not replaced: the file lies in the directory for temporary files, and commit() writes its content to them.
///
/// The creating process holds an exclusive advisory lock on the file until commit(). The kernel (on NFS: the server)
/// releases the lock when the process dies, so an unlocked temporary file has no running owner. A process ID in the
/// name would not show this: in a container the process has ID 1 at every start, and on shared storage the process may
/// run on another host.
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
  /// The target with its links resolved.
  const std::filesystem::path& target() const { return target_; }
  /// The file, open for writing; -1 after commit().
  int descriptor() const { return descriptor_; }
  /// fsync, rename over the target, fsync of the directory; for devices, pipes and descriptors writes the content to
  /// the target. On failure removes the temporary file and throws WriteError.
  void commit();

 private:
  bool create();
  std::filesystem::path target_, path_;
  int descriptor_ = -1;
};

/// Whether a file of this name is a temporary one of `target` (empty: of any file).
bool is_temporary(std::string_view name, std::string_view target = {});

/// Removes temporary files that dead processes left in `directory`: regular files of this user with the name of a
/// temporary file that no process has locked. `target`: only temporary files of that file. Removes nothing on file
/// systems without locks. Returns the number of removed files; throws nothing.
size_t remove_dead_temporaries(const std::filesystem::path& directory, std::string_view target = {});

}  // namespace trireme
