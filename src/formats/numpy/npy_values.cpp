#include "trireme/formats/numpy/npy_values.h"

#include "trireme/formats/numpy/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace trireme {

std::string npy_header_bytes(const std::string& descr, std::span<const int64_t> shape) {
  std::string extents;
  for (const int64_t extent : shape) extents += fmt::format("{}{}", extents.empty() ? "" : ", ", extent);
  if (shape.size() == 1) extents += ",";
  std::string dictionary = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, extents);
  // Magic, version and length take 10 bytes; NumPy pads the whole to a multiple of 64 and ends with a newline.
  dictionary.resize((10 + dictionary.size() + 1 + 63) / 64 * 64 - 11, ' ');
  dictionary += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dictionary.size() & 0xFF);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

NpyValues::NpyValues(const std::filesystem::path& path) : file_(path, ExitCode::kData) {
  const NpyHeader header = parse_npy_header(file_.bytes(), path);
  const auto fail = [&](const std::string& what) { throw DataError(fmt::format("{}: {}", path.string(), what)); };
  if (header.descr == "<i4")
    kind_ = Kind::kI4;
  else if (header.descr == "<u4")
    kind_ = Kind::kU4;
  else if (header.descr == "<i8")
    kind_ = Kind::kI8;
  else
    fail(fmt::format("elements of type '{}', expected <i4, <u4 or <i8", header.descr));
  if (header.fortran_order && header.shape.size() > 1) fail("the array is in Fortran order, expected C order");
  shape_ = header.shape;
  offset_ = header.data_offset;
  // The product of the shape does not overflow (parse_npy_header); times 8 it may.
  int64_t bytes = 0;
  const bool overflows = __builtin_mul_overflow(size(), item_size(), &bytes);
  const auto there = static_cast<int64_t>(file_.bytes().size() - offset_);
  if (overflows || bytes != there)
    fail(fmt::format("{} elements of {} bytes are declared, and {} bytes are there", size(), item_size(), there));
}

int64_t NpyValues::size() const {
  return std::accumulate(shape_.begin(), shape_.end(), int64_t{1}, std::multiplies<int64_t>());
}

std::pair<int64_t, int64_t> NpyValues::range() const {
  const int64_t count = size();
  if (count == 0) return {0, -1};
  std::pair<int64_t, int64_t> range{at(0), at(0)};
  for (int64_t i = 1; i < count; ++i) {
    const int64_t value = at(i);
    range = {std::min(range.first, value), std::max(range.second, value)};
  }
  return range;
}

std::string NpyValues::name() const { return file_.path().empty() ? "in memory" : file_.path().string(); }

void NpyValues::save(const std::filesystem::path& path) const {
  AtomicFile file(path);
  const char* descr = kind_ == Kind::kI4 ? "<i4" : kind_ == Kind::kU4 ? "<u4" : "<i8";
  file.write(npy_header_bytes(descr, shape_));
  file.write(data(), static_cast<size_t>(size() * item_size()));
  file.commit();
}

}  // namespace trireme
