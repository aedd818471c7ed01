#pragma once
// Token rows in HDF5: input_ids [N, S] (any integer type); optional loss_mask [N, S]; optional seq_start_id,
// variable-length rows. loss_mask is 0 to kMostLossMask (npy.h). External links and external raw files
// are refused; the writer uses chunks of whole rows, with Fletcher-32 checksums for tokens and masks (HDF5 has none for
// variable-length rows). DataError with file, dataset and row.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace trireme {

class Hdf5TokenFile {
 public:
  explicit Hdf5TokenFile(const std::filesystem::path& path);
  ~Hdf5TokenFile();
  Hdf5TokenFile(Hdf5TokenFile&&) noexcept;
  int64_t rows() const;
  int64_t columns() const;
  bool has_loss_mask() const;
  bool has_seq_start_id() const;
  /// Thread-safe: libhdf5 is called under one lock.
  void read_row(int64_t row, std::span<int64_t> input_ids) const;
  void read_loss_mask(int64_t row, std::span<uint8_t> mask) const;
  std::vector<int64_t> read_seq_start_id(int64_t row) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class Hdf5TokenWriter {
 public:
  struct Columns {
    bool loss_mask = false, seq_start_id = false;
  };
  Hdf5TokenWriter(const std::filesystem::path& path, int64_t seq_length, Columns columns);
  ~Hdf5TokenWriter();
  void append(std::span<const int32_t> input_ids, std::span<const uint8_t> loss_mask,
              std::span<const int32_t> seq_start_id);
  void commit();  // atomic: the file appears whole or not at all

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
