#pragma once
// One file of token rows behind one face. Private to the module: callers use TokenDataset, which
// checks what these return.

#include "trireme/base/file.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme {

/// A row as the file stores it, unchecked. An empty loss_mask means a loss on every position; an
/// empty sequence_starts, one sequence.
struct StoredRow {
  std::vector<int64_t> input_ids;
  std::vector<uint8_t> loss_mask;
  std::vector<int64_t> sequence_starts;
  bool has_loss_mask = false, has_sequence_starts = false;
};

class RowFile {
 public:
  virtual ~RowFile() = default;
  virtual int64_t rows() const = 0;
  virtual StoredRow read(int64_t row) const = 0;
  /// Where a token (position >= 0) or the row itself (position < 0) lies: "byte 4,224" or "dataset
  /// input_ids".
  virtual std::string where(int64_t row, int64_t position) const = 0;
  virtual std::string kind() const = 0;  // "npy [N, S] int32", "MLPerf records", "HDF5"
  const std::filesystem::path& path() const { return path_; }

 protected:
  explicit RowFile(std::filesystem::path path) : path_(std::move(path)) {}

 private:
  std::filesystem::path path_;
};

/// Format from the content, never from the name. DataError for a file that is neither npy nor HDF5,
/// naming what it looks like; where the row length is known when opening, for one that is not
/// seq_length.
std::unique_ptr<RowFile> open_row_file(const std::filesystem::path& path, int64_t seq_length);

/// What unfamiliar bytes look like and what to do about it: "Parquet: convert it with `trireme data
/// pack …`".
std::string describe_unknown_content(std::span<const std::byte> bytes);

}  // namespace trireme
