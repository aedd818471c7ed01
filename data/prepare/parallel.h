#pragma once
// Processes many files: in parallel, resumable, and without leaving incomplete files.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

/// Calls work(i) for i in [0, count) on `threads` threads (0: one per core). After an exception no further i is
/// started; the exception of the lowest failed i is thrown.
void parallel_for(size_t count, unsigned threads, const std::function<void(size_t)>& work);

/// Records which outputs of a directory are finished. The record of an output holds a fingerprint of its inputs and
/// options: a repeated run skips finished outputs and makes outputs with another fingerprint again.
class PartRecords {
 public:
  /// Creates the directory and removes temporary files of dead processes. The destructor removes them again, because a
  /// process may not have ended yet at the start.
  explicit PartRecords(const std::filesystem::path& directory);
  ~PartRecords();
  PartRecords(const PartRecords&) = delete;
  PartRecords& operator=(const PartRecords&) = delete;
  /// True if the output exists with its recorded size and was made from `fingerprint`.
  bool is_done(const std::string& name, uint64_t fingerprint) const;
  /// Call it when the output is complete.
  void done(const std::string& name, uint64_t fingerprint, const std::string& note = "") const;
  /// The text that was passed to done().
  std::string note(const std::string& name) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace trireme
