#include "trireme/formats/numpy/npy.h"

#include "trireme/base/dtype.h"
#include "trireme/formats/numpy/npy_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace trireme {

NpyIntegerArray::NpyIntegerArray(MappedFile file, const NpyHeader& header) : file_(std::move(file)) {
  const std::string name = file_.path().string();
  const std::string& descr = header.descr;
  const bool well_formed = descr.size() == 3 && (descr[1] == 'i' || descr[1] == 'u') &&
                           std::strchr("<>|=", descr[0]) != nullptr && std::strchr("1248", descr[2]) != nullptr;
  if (!well_formed)
    throw DataError(
        fmt::format("{} holds elements of type '{}'; token rows are integers (i1 to i8, u1 to u8)", name, descr));
  if (header.shape.size() != 2)
    throw DataError(
        fmt::format("{} has shape [{}]; token rows are a two-dimensional array [rows, seq_length]: reshape it in NumPy",
                    name, fmt::join(header.shape, ", ")));
  item_size_ = descr[2] - '0';
  is_signed_ = descr[1] == 'i';
  swap_ = descr[0] == '>' && item_size_ > 1;
  fortran_ = header.fortran_order;
  rows_ = header.shape[0];
  columns_ = header.shape[1];
  data_offset_ = header.data_offset;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(rows_ * columns_, int64_t{item_size_}, &bytes))
    throw DataError(fmt::format("{}: the array's size overflows", name));
  const auto there = static_cast<int64_t>(file_.bytes().size() - data_offset_);
  if (there != bytes)
    throw DataError(fmt::format("{} {}: [{}, {}] elements of {} bytes take {} bytes and {} are there", name,
                                there < bytes ? "is truncated" : "has trailing bytes", rows_, columns_, item_size_,
                                bytes, there));
}

size_t NpyIntegerArray::row_offset(int64_t row) const {
  return data_offset_ + static_cast<size_t>((fortran_ ? row : row * columns_) * item_size_);
}

void NpyIntegerArray::read_row(int64_t row, std::span<int64_t> out) const {
  TRIREME_CHECK(row >= 0 && row < rows_ && static_cast<int64_t>(out.size()) == columns_, "row ", row, " of ", rows_,
                " into ", out.size(), " places of ", columns_);
  const std::byte* data = file_.bytes().data() + data_offset_;
  const int64_t first = fortran_ ? row : row * columns_, stride = fortran_ ? rows_ : 1;
  for (int64_t column = 0; column < columns_; ++column) {
    std::byte raw[8] = {};
    const std::byte* element = data + (first + column * stride) * item_size_;
    for (int i = 0; i < item_size_; ++i) raw[i] = element[swap_ ? item_size_ - 1 - i : i];
    uint64_t value = std::bit_cast<uint64_t>(raw);
    if (is_signed_ && item_size_ < 8) {
      const int shift = 64 - 8 * item_size_;
      value = static_cast<uint64_t>(static_cast<int64_t>(value << shift) >> shift);
    } else if (!is_signed_ && value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw DataError(fmt::format("{}: row {}, column {} (byte {}): value {} is not a token id", file_.path().string(),
                                  row, column, element - file_.bytes().data(), value));
    }
    out[static_cast<size_t>(column)] = static_cast<int64_t>(value);
  }
}

void write_npy_int32(const std::filesystem::path& path, std::span<const int32_t> values, int64_t rows,
                     int64_t columns) {
  TRIREME_CHECK(static_cast<int64_t>(values.size()) == rows * columns, values.size(), " values for [", rows, ", ",
                columns, "]");
  const int64_t shape[] = {rows, columns};
  AtomicFile file(path);
  file.write(npy_header_bytes("<i4", shape));
  file.write(values.data(), values.size_bytes());
  file.commit();
}

}  // namespace trireme
