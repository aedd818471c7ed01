#pragma once
// Common interface of token row files. Private to the module: callers use TokenDataset, which checks the rows.

#include "trireme/base/file.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme {

/// A row as stored in the file, unchecked. Empty loss_mask: every position counts. Empty sequence_starts: one sequence.
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
  /// The location of a token (position >= 0) or of the row (position < 0) in the file: "byte 4,224" or "dataset
  /// input_ids".
  virtual std::string where(int64_t row, int64_t position) const = 0;
  virtual std::string kind() const = 0;  // "npy [N, S] int32", "MLPerf records", "HDF5"
  const std::filesystem::path& path() const { return path_; }

 protected:
  explicit RowFile(std::filesystem::path path) : path_(std::move(path)) {}

 private:
  std::filesystem::path path_;
};

/// Recognises the format by the content, never by the name. DataError for a file that is neither npy nor HDF5, with a
/// guess of its format, and for a row length other than seq_length if the header tells the length.
std::unique_ptr<RowFile> open_row_file(const std::filesystem::path& path, int64_t seq_length);

/// A guess of the format of `bytes`, with advice: "Parquet: convert it with `trireme data pack …`".
std::string describe_unknown_content(std::span<const std::byte> bytes);

}  // namespace trireme
