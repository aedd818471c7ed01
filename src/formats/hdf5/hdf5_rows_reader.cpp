#include "formats/hdf5/hdf5_dataset.h"
#include "formats/hdf5/hdf5_global_heap.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/formats/hdf5/hdf5_rows.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

namespace trireme {

namespace {

/// Storage format of an integer.
struct IntegerLayout {
  size_t size = 0;
  bool is_signed = false, big_endian = false;
};

IntegerLayout integer_layout(hid_t type) {
  const H5T_order_t order = H5Tget_order(type);
  const size_t size = H5Tget_size(type);
  const bool plain = H5Tget_class(type) == H5T_INTEGER && size <= 8 && H5Tget_precision(type) == 8 * size &&
                     H5Tget_offset(type) == 0 && (order == H5T_ORDER_LE || order == H5T_ORDER_BE);
  return plain ? IntegerLayout{size, H5Tget_sign(type) != H5T_SGN_NONE, order == H5T_ORDER_BE} : IntegerLayout{};
}

/// Appends the integers of `bytes`; false when one exceeds int32.
bool decode(std::span<const std::byte> bytes, IntegerLayout layout, std::vector<int32_t>& out) {
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

}  // namespace

struct Hdf5RowFile::State {
  /// A stored element of a variable-length dataset.
  struct Element {
    uint32_t length;
    uint64_t address;
    uint32_t index;
  };
  static constexpr size_t kElementBytes = 16;

  std::string path;
  MappedFile mapped;
  Hdf5Handle file;
  uint64_t base = 0;

  Hdf5Dataset open(const std::string& name) const {
    if (H5Lexists(file.get(), name.c_str(), H5P_DEFAULT) <= 0)
      throw DataError(fmt::format("{} has no dataset {}", path, name));
    Hdf5Dataset dataset(file.get(), name.c_str(), path);
    if (dataset.extents().size() != 1)
      dataset.fail(fmt::format("has {} dimensions, expected 1", dataset.extents().size()));
    return dataset;
  }

  /// The elements of a variable-length dataset: references into the global heap.
  std::span<const std::byte> elements(const Hdf5Dataset& dataset) const {
    const size_t rows = dataset.extents()[0];
    if (rows == 0) return {};
    const Hdf5Handle properties(H5Dget_create_plist(dataset.get()), H5Pclose);
    if (H5Pget_layout(properties.get()) != H5D_CONTIGUOUS)
      dataset.fail(
          "is chunked: write it again without chunks and compression, as h5py does unless told "
          "otherwise");
    const haddr_t at = H5Dget_offset(dataset.get());
    const size_t size = mapped.bytes().size();
    if (at == HADDR_UNDEF || at > size || rows > (size - at) / kElementBytes) dataset.fail("lies outside the file");
    return mapped.bytes().subspan(at, rows * kElementBytes);
  }

  static Element element(std::span<const std::byte> elements, size_t row) {
    Element result;
    const std::byte* bytes = elements.data() + row * kElementBytes;
    std::memcpy(&result.length, bytes, 4);
    std::memcpy(&result.address, bytes + 4, 8);
    std::memcpy(&result.index, bytes + 12, 4);
    return result;
  }

  static IntegerLayout row_layout(const Hdf5Dataset& dataset) {
    const Hdf5Handle base_type(dataset.type_class() == H5T_VLEN ? H5Tget_super(dataset.type()) : -1, H5Tclose);
    const IntegerLayout layout = base_type ? integer_layout(base_type.get()) : IntegerLayout{};
    if (layout.size == 0) dataset.fail("does not hold variable-length rows of integers");
    return layout;
  }
};

Hdf5RowFile::Hdf5RowFile(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path.string();
  check_hdf5_superblock(path);
  s.mapped = MappedFile(path, ExitCode::kData);
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
  s.file = {H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose};
  if (!s.file) throw DataError(fmt::format("{} cannot be opened as HDF5: {}", s.path, hdf5_reason()));
  const Hdf5Handle properties(H5Fget_create_plist(s.file.get()), H5Pclose);
  hsize_t user_block = 0;
  if (H5Pget_userblock(properties.get(), &user_block) < 0)
    throw DataError(fmt::format("{} cannot be opened as HDF5: {}", s.path, hdf5_reason()));
  s.base = user_block;
}

Hdf5RowFile::~Hdf5RowFile() {
  if (!state_) return;
  const std::scoped_lock lock(hdf5_mutex());
  state_.reset();
}
Hdf5RowFile::Hdf5RowFile(Hdf5RowFile&&) noexcept = default;

bool Hdf5RowFile::has(const std::string& name) const {
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
  return H5Lexists(state_->file.get(), name.c_str(), H5P_DEFAULT) > 0;
}

bool Hdf5RowFile::is_variable_length(const std::string& name) const {
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
  return state_->open(name).type_class() == H5T_VLEN;
}

int64_t Hdf5RowFile::rows(const std::string& name) const {
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
  return static_cast<int64_t>(state_->open(name).extents()[0]);
}

std::vector<int32_t> Hdf5RowFile::read_column(const std::string& name) const {
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
  const Hdf5Dataset dataset = state_->open(name);
  dataset.require_integers(1);
  std::vector<int64_t> wide(dataset.extents()[0]);
  // Unsigned 64-bit values beyond int64 saturate in HDF5's conversion.
  if (H5Dread(dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, wide.data()) < 0)
    dataset.fail(fmt::format("cannot be read ({}): the file is damaged", hdf5_reason()));
  std::vector<int32_t> values(wide.size());
  for (size_t i = 0; i < wide.size(); ++i) {
    if (wide[i] < std::numeric_limits<int32_t>::min() || wide[i] > std::numeric_limits<int32_t>::max())
      dataset.fail(fmt::format("row {}: {} is out of range", i, wide[i]));
    values[i] = static_cast<int32_t>(wide[i]);
  }
  return values;
}

IntegerRows Hdf5RowFile::read_rows(const std::string& name, int64_t max_length) const {
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
  const Hdf5Dataset dataset = state_->open(name);
  const IntegerLayout layout = State::row_layout(dataset);
  const std::span<const std::byte> elements = state_->elements(dataset);
  const size_t rows = dataset.extents()[0];
  IntegerRows result;
  result.offsets.reserve(rows + 1);
  Hdf5GlobalHeap heap(state_->mapped.bytes(), state_->base);
  std::string problem;
  for (size_t row = 0; row < rows; ++row) {
    const State::Element element = State::element(elements, row);
    if (element.length > 0) {
      if (element.length > static_cast<uint64_t>(max_length))
        dataset.fail(fmt::format("row {} has {} entries, at most {} are expected", row, element.length, max_length));
      const auto object = heap.object(element.address, element.index, problem);
      const size_t bytes = element.length * layout.size;
      if (problem.empty() && object.size() < bytes)
        problem = fmt::format("{} bytes stored, {} declared", object.size(), bytes);
      if (!problem.empty()) dataset.fail(fmt::format("row {} cannot be read ({}): the file is damaged", row, problem));
      if (!decode(object.first(bytes), layout, result.values))
        dataset.fail(fmt::format("row {} has a value beyond 32 bits", row));
    }
    result.offsets.push_back(static_cast<int64_t>(result.values.size()));
  }
  return result;
}

int64_t Hdf5RowFile::count_values(const std::string& name, int64_t max_length) const {
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
  const Hdf5Dataset dataset = state_->open(name);
  State::row_layout(dataset);
  const std::span<const std::byte> elements = state_->elements(dataset);
  int64_t total = 0;
  for (size_t row = 0; row < dataset.extents()[0]; ++row) {
    const uint32_t length = State::element(elements, row).length;
    if (length > max_length)
      dataset.fail(fmt::format("row {} has {} entries, at most {} are expected", row, length, max_length));
    total += length;
  }
  return total;
}

}  // namespace trireme
