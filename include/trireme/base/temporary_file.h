#pragma once
// Files that are written under a temporary name and renamed when they are whole, and the removal of those that a dead
// process has left.

#include <cstddef>
#include <filesystem>
#include <string_view>

namespace trireme {

/// A file beside `target`, named "TARGET.tmp-" and 16 random hexadecimal digits, which becomes `target` at commit().
///
/// Its maker holds an exclusive advisory lock on it as long as it has that name. The kernel (on NFS the server) drops
/// the lock when the process dies, so that a temporary that nobody has locked belongs to nobody. A process number in
/// the name could not tell: in a container every life has number 1, and on shared storage the process may be on another
/// host.
class TemporaryFile {
 public:
  /// Removes what dead makers of the same target have left, then creates the file. WriteError naming target and reason.
  explicit TemporaryFile(const std::filesystem::path& target);
  /// Removes the file unless it was committed.
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& target() const { return target_; }
  /// Open for writing; -1 once committed.
  int descriptor() const { return descriptor_; }
  /// fsync, rename over the target, fsync of the directory. WriteError; the file is gone then.
  void commit();

 private:
  bool create();
  std::filesystem::path target_, path_;
  int descriptor_ = -1;
};

/// Removes temporaries of TemporaryFile in `directory` whose makers are dead: regular files of this user, with such a
/// name, that nobody has locked. `target`: only those of that file. Where the file system has no locks nothing is
/// removed. Returns how many were removed; throws nothing.
size_t remove_dead_temporaries(const std::filesystem::path& directory, std::string_view target = {});

}  // namespace trireme
