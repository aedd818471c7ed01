#pragma once
// Work over many files: parallel, resumable, half-written files cleared away.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

/// Calls work(i) for i in [0, count) on `threads` threads (0: one per core). After an exception no further i is begun;
/// the exception of the lowest i that failed is thrown.
void parallel_for(size_t count, unsigned threads, const std::function<void(size_t)>& work);

/// Which outputs of a directory are finished. A record belongs to one output and says what it was made from, so that a
/// run that is begun again skips what it has and makes anew what other options or inputs would make.
class PartRecords {
 public:
  /// Creates the directory, and removes temporary files that processes that are gone have left in it; the destructor
  /// looks once more, for a process that was only just dying at the start.
  explicit PartRecords(const std::filesystem::path& directory);
  ~PartRecords();
  PartRecords(const PartRecords&) = delete;
  PartRecords& operator=(const PartRecords&) = delete;
  /// The output is there in the size recorded, and was made from `fingerprint`.
  bool is_done(const std::string& name, uint64_t fingerprint) const;
  /// To be called once the output is whole.
  void done(const std::string& name, uint64_t fingerprint, const std::string& note = "") const;
  /// The text that done() kept with the record.
  std::string note(const std::string& name) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace trireme
