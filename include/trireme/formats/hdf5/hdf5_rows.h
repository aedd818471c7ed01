#pragma once
// Rows of integers in HDF5 as h5py writes them: variable-length rows (vlen), plain columns and matrices; contiguous
// or in chunks. Files are untrusted: links and external data are refused, every address and length is checked.
// Variable-length rows are decoded directly from the file's global heap (HDF5 File Format Specification 3.0, III.E),
// because libhdf5 needs one call per row and does not check the lengths. Thread-safe: libhdf5 is called under one lock.
// DataError with file, dataset and row.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trireme {

/// Rows of different lengths, concatenated.
struct IntegerRows {
  std::vector<int32_t> values;
  std::vector<int64_t> offsets{0};  // [rows + 1]
  int64_t size() const { return static_cast<int64_t>(offsets.size()) - 1; }
  std::span<const int32_t> row(int64_t i) const {
    const auto at = static_cast<size_t>(i);
    return std::span(values).subspan(static_cast<size_t>(offsets[at]),
                                     static_cast<size_t>(offsets[at + 1] - offsets[at]));
  }
};

class Hdf5RowFile {
 public:
  explicit Hdf5RowFile(const std::filesystem::path& path);
  ~Hdf5RowFile();
  Hdf5RowFile(Hdf5RowFile&&) noexcept;
  bool has(const std::string& name) const;
  bool is_variable_length(const std::string& name) const;
  /// Number of rows of a one-dimensional dataset.
  int64_t rows(const std::string& name) const;
  /// A plain column [N] of integers that int32 can hold.
  std::vector<int32_t> read_column(const std::string& name) const;
  /// A variable-length column [N]; no row may be longer than `max_length`.
  IntegerRows read_rows(const std::string& name, int64_t max_length) const;
  /// The sum of the rows' lengths, without reading the rows.
  int64_t count_values(const std::string& name, int64_t max_length) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes a file of rows atomically: the file appears at commit(); without commit() nothing remains. WriteError.
class Hdf5RowWriter {
 public:
  explicit Hdf5RowWriter(const std::filesystem::path& path);
  ~Hdf5RowWriter();
  /// Variable-length rows: row i is values[offsets[i] .. offsets[i + 1]).
  void write_rows(const std::string& name, std::span<const int8_t> values, std::span<const int64_t> offsets);
  void write_rows(const std::string& name, std::span<const int16_t> values, std::span<const int64_t> offsets);
  /// Shape [N], or [N, columns] if columns > 0.
  void write_table(const std::string& name, std::span<const int8_t> values, int64_t columns = 0);
  void write_table(const std::string& name, std::span<const int16_t> values, int64_t columns = 0);
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
