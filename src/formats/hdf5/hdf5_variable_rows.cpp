#include "formats/hdf5/hdf5_variable_rows.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <string>

namespace trireme {

namespace {

constexpr size_t kElementBytes = 16;

}  // namespace

Hdf5VariableRows::Hdf5VariableRows(const Hdf5Dataset& dataset, std::span<const std::byte> file, uint64_t base)
    : dataset_(dataset), heap_(file, base) {
  const Hdf5Handle entries(dataset.type_class() == H5T_VLEN ? H5Tget_super(dataset.type()) : -1, H5Tclose);
  if (entries) layout_ = layout_of(entries.get());
  if (layout_.size == 0) dataset.fail("does not hold variable-length rows of integers");
  if (dataset.extents().size() != 1)
    dataset.fail(fmt::format("has {} dimensions, expected 1", dataset.extents().size()));
  const size_t rows = dataset.extents()[0];
  if (rows == 0 || dataset.chunked()) return;
  const haddr_t at = H5Dget_offset(dataset.get());
  if (at == HADDR_UNDEF || at > file.size() || rows > (file.size() - at) / kElementBytes)
    dataset.fail("lies outside the file");
  contiguous_ = file.subspan(at, rows * kElementBytes);
}

Hdf5VariableRows::Layout Hdf5VariableRows::layout_of(hid_t type) {
  const H5T_order_t order = H5Tget_order(type);
  const size_t size = H5Tget_size(type);
  const bool plain = H5Tget_class(type) == H5T_INTEGER && size <= 8 && H5Tget_precision(type) == 8 * size &&
                     H5Tget_offset(type) == 0 && (order == H5T_ORDER_LE || order == H5T_ORDER_BE);
  return plain ? Layout{size, H5Tget_sign(type) != H5T_SGN_NONE, order == H5T_ORDER_BE} : Layout{};
}

/// Appends the integers of `bytes`; false when one exceeds int32.
bool Hdf5VariableRows::decode(std::span<const std::byte> bytes, Layout layout, std::vector<int32_t>& out) {
  const size_t count = bytes.size() / layout.size, before = out.size();
  out.resize(before + count);
  int32_t* target = out.data() + before;
  if (layout.size == 2 && layout.is_signed && !layout.big_endian) {
    for (size_t i = 0; i < count; ++i) {
      int16_t value;
      std::memcpy(&value, bytes.data() + 2 * i, 2);
      target[i] = value;
    }
    return true;
  }
  for (size_t i = 0; i < count; ++i) {
    uint64_t value = 0;
    for (size_t k = 0; k < layout.size; ++k) {
      const size_t at = layout.big_endian ? k : layout.size - 1 - k;
      value = value << 8 | std::to_integer<uint64_t>(bytes[i * layout.size + at]);
    }
    const auto unused = static_cast<unsigned>(64 - 8 * layout.size);
    const int64_t wide =
        layout.is_signed ? static_cast<int64_t>(value << unused) >> unused : static_cast<int64_t>(value);
    if (wide < std::numeric_limits<int32_t>::min() || wide > std::numeric_limits<int32_t>::max()) return false;
    target[i] = static_cast<int32_t>(wide);
  }
  return true;
}

Hdf5VariableRows::Element Hdf5VariableRows::element(size_t row, int64_t max_length) {
  const void* bytes = nullptr;
  if (dataset_.chunked()) {
    const size_t rows = dataset_.chunk_rows(), number = row / rows;
    if (number != chunk_number_) {
      chunk_number_ = SIZE_MAX;
      chunk_ = dataset_.chunk(number * rows);
      if (chunk_.size() != rows * kElementBytes) dataset_.fail("has elements of another size than 16 bytes");
      chunk_number_ = number;
    }
    bytes = chunk_.data() + row % rows * kElementBytes;
  } else {
    bytes = contiguous_.data() + row * kElementBytes;
  }
  Element element{};
  std::memcpy(&element.length, bytes, 4);
  std::memcpy(&element.address, static_cast<const char*>(bytes) + 4, 8);
  std::memcpy(&element.index, static_cast<const char*>(bytes) + 12, 4);
  if (element.length > static_cast<uint64_t>(max_length))
    dataset_.fail(fmt::format("row {} has {} entries, at most {} are expected", row, element.length, max_length));
  return element;
}

int64_t Hdf5VariableRows::length(size_t row, int64_t max_length) { return element(row, max_length).length; }

void Hdf5VariableRows::append(size_t row, int64_t max_length, std::vector<int32_t>& out) {
  const Element stored = element(row, max_length);
  if (stored.length == 0) return;
  std::string problem;
  const auto object = heap_.object(stored.address, stored.index, problem);
  const size_t bytes = stored.length * layout_.size;
  if (problem.empty() && object.size() < bytes)
    problem = fmt::format("{} bytes stored, {} declared", object.size(), bytes);
  if (!problem.empty()) dataset_.fail(fmt::format("row {} cannot be read ({}): the file is damaged", row, problem));
  if (!decode(object.first(bytes), layout_, out)) dataset_.fail(fmt::format("row {} has a value beyond 32 bits", row));
}

}  // namespace trireme
