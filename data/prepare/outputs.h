#pragma once
// Outputs of preparations: files of training rows with loss masks and sequence starts, and which of many files are
// finished.

#include "trireme/formats/numpy/npy.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// ConfigError where a file that is there is neither empty nor rows.
void check_replaceable(const std::vector<std::filesystem::path>& outputs);
/// ConfigError unless the names end in .npy, .h5 or .hdf5, what is there is npy or HDF5, no file is named twice, inputs
/// included, and a second file and its fraction are both given or neither. Makes the folders.
void check_row_outputs(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output,
                       const std::filesystem::path& valid_output, double valid_fraction);
/// Whether an item is among a fraction of all, by its number, a seed and what it is drawn for.
bool is_drawn(std::string_view purpose, uint64_t seed, int64_t number, double fraction);
/// Whether an item belongs to the second file.
bool in_valid_split(uint64_t seed, int64_t number, double valid_fraction);
bool is_hdf5_name(const std::filesystem::path& path);

/// Writes `count` rows of seq_length tokens: an object npy (MLPerf's layout), or HDF5. Atomic.
void write_masked_rows(const std::filesystem::path& path, int64_t seq_length, int64_t count,
                       const std::function<PackedRecord(int64_t)>& row);

/// Records which outputs of a directory are finished. The record of an output holds a fingerprint of its inputs and
/// options: a repeated run skips finished outputs and makes outputs with another fingerprint again.
class PartRecords {
 public:
  /// Creates the directory and removes temporary files of dead processes. The destructor removes them again, because a
  /// process may not have ended yet at the start, and what it has created if nothing was done.
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
  bool created_;
};

}  // namespace trireme
