#pragma once
// NumPy .npy files: integer arrays of any byte order, and the object arrays of MLPerf llama2_70b_lora. The reader of
// their pickle accepts only the opcodes that such files use, and executes nothing. Every count is bounded by the file's
// size. DataError with file and byte offset for anything else.

#include "trireme/base/file.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme {

struct NpyHeader {
  int major = 1;
  std::string descr;  // "<i4", "|O", …
  bool fortran_order = false;
  std::vector<int64_t> shape;
  size_t data_offset = 0;
};

/// Strict: magic, version 1-3, a header that is exactly the dict with its three keys, shape product without overflow.
NpyHeader parse_npy_header(std::span<const std::byte> file, const std::filesystem::path& path);

/// A 2-D integer array [rows, columns], mapped; rows are decoded to int64 on demand.
class NpyIntegerArray {
 public:
  NpyIntegerArray(MappedFile file, const NpyHeader& header);
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  void read_row(int64_t row, std::span<int64_t> out) const;

 private:
  MappedFile file_;
  int64_t rows_ = 0, columns_ = 0;
  int item_size_ = 0;
  bool is_signed_ = false, swap_ = false, fortran_ = false;
  size_t data_offset_ = 0;
};

/// 1: a target; 2: the target of a rejected answer; 3: of an answer to another prompt (data/dataset.h).
inline constexpr uint8_t kMostLossMask = 3;

/// One element of MLPerf's 1-D object array of dicts: copies of its values.
struct PackedRecord {
  std::vector<int32_t> input_ids;
  std::vector<uint8_t> loss_mask;     // as stored: aligned with input_ids, 0 to kMostLossMask
  std::vector<int32_t> seq_start_id;  // ascending, first is 0
};

/// Decodes the pickle once into an index of byte ranges; records are built one at a time.
class NpyPackedRecords {
 public:
  NpyPackedRecords(MappedFile file, const NpyHeader& header);
  ~NpyPackedRecords();
  NpyPackedRecords(NpyPackedRecords&&) noexcept;
  int64_t size() const;
  PackedRecord read(int64_t index) const;
  size_t record_offset(int64_t index) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writers of `rows` x `columns` little-endian int32, and of the object array exactly as NumPy 1.x pickles it (protocol
/// 3, numpy.core.multiarray names), byte for byte equal to the output of MLPerf's convert_dataset.py.
void write_npy_int32(const std::filesystem::path& path, std::span<const int32_t> values, int64_t rows, int64_t columns);

class NpyPackedRecordWriter {
 public:
  NpyPackedRecordWriter(const std::filesystem::path& path, int64_t count);
  ~NpyPackedRecordWriter();
  void append(const PackedRecord& record);
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ---- Integer arrays of npy files, mapped or in memory, and their writer.

/// The header of an npy file of version 1.0 as NumPy writes it: little-endian elements in C order, padded so that the
/// data begins at a multiple of 64. `descr`: "<i4".
std::string npy_header_bytes(const std::string& descr, std::span<const int64_t> shape);

/// An integer array in C order whose elements are read one at a time. Const members are thread-safe.
class NpyValues {
 public:
  NpyValues() = default;
  /// Maps a file of <i4, <u4 or <i8. DataError for other content, naming file and problem.
  explicit NpyValues(const std::filesystem::path& path);
  /// In memory.
  template <class T>
  NpyValues(std::vector<T> values, std::vector<int64_t> shape) : shape_(std::move(shape)) {
    static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, uint32_t> || std::is_same_v<T, int64_t>);
    kind_ = std::is_same_v<T, int32_t> ? Kind::kI4 : std::is_same_v<T, uint32_t> ? Kind::kU4 : Kind::kI8;
    auto own = std::make_shared<std::vector<T>>(std::move(values));
    own_ = std::shared_ptr<const std::byte>(own, reinterpret_cast<const std::byte*>(own->data()));
  }

  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size() const;  // elements
  /// Element `index` in C order, which must be below size().
  int64_t at(int64_t index) const {
    const std::byte* base = data();
    switch (kind_) {
      case Kind::kI4: return load<int32_t>(base, index);
      case Kind::kU4: return load<uint32_t>(base, index);
      case Kind::kI8: return load<int64_t>(base, index);
    }
    return 0;
  }
  /// Smallest and largest element; {0, -1} for an empty array.
  std::pair<int64_t, int64_t> range() const;
  /// "file.npy" or "in memory", for messages.
  std::string name() const;
  /// Writes the array to an npy file, atomically. WriteError.
  void save(const std::filesystem::path& path) const;

 private:
  enum class Kind { kI4, kU4, kI8 };
  template <class T>
  static int64_t load(const std::byte* base, int64_t index) {
    return value_at<T>(base + index * static_cast<int64_t>(sizeof(T)));
  }
  const std::byte* data() const { return own_ ? own_.get() : file_.bytes().data() + offset_; }
  int64_t item_size() const { return kind_ == Kind::kI8 ? 8 : 4; }

  std::vector<int64_t> shape_ = {0};
  Kind kind_ = Kind::kI4;
  MappedFile file_;
  size_t offset_ = 0;
  std::shared_ptr<const std::byte> own_;  // keeps the vector
};

}  // namespace trireme
