#include "trireme/formats/hdf5/hdf5_rows.h"

#include "hdf5_dataset.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <fmt/format.h>

#include <limits>

namespace trireme {

struct Hdf5RowFile::State {
  std::string path;
  MappedFile mapped;
  Hdf5Handle file;
  uint64_t base = 0;

  Hdf5Dataset open(const std::string& name) const {
    if (!hdf5_has(file.get(), name, path)) throw DataError(fmt::format("{} has no dataset {}", path, name));
    Hdf5Dataset dataset(file.get(), name.c_str(), path);
    if (dataset.extents().size() != 1)
      dataset.fail(fmt::format("has {} dimensions, expected 1", dataset.extents().size()));
    // A row of input_ids takes more than that. Compressed rows of nothing can be a thousand to a byte.
    if (dataset.extents()[0] > mapped.bytes().size())
      dataset.fail(fmt::format("has {} rows in a file of {} bytes", dataset.extents()[0], mapped.bytes().size()));
    return dataset;
  }
};

Hdf5RowFile::Hdf5RowFile(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path.string();
  const Hdf5Lock lock;
  s.file = open_hdf5(path);
  s.mapped = MappedFile(path, ExitCode::kData);
  s.base = hdf5_user_block(s.file.get(), s.path);
}

Hdf5RowFile::~Hdf5RowFile() {
  if (!state_) return;
  const Hdf5Lock lock;
  state_.reset();
}
Hdf5RowFile::Hdf5RowFile(Hdf5RowFile&&) noexcept = default;

bool Hdf5RowFile::has(const std::string& name) const {
  const Hdf5Lock lock;
  return hdf5_has(state_->file.get(), name, state_->path);
}

bool Hdf5RowFile::is_variable_length(const std::string& name) const {
  const Hdf5Lock lock;
  return state_->open(name).type_class() == H5T_VLEN;
}

int64_t Hdf5RowFile::rows(const std::string& name) const {
  const Hdf5Lock lock;
  return static_cast<int64_t>(state_->open(name).extents()[0]);
}

std::vector<int32_t> Hdf5RowFile::read_column(const std::string& name) const {
  const Hdf5Lock lock;
  const Hdf5Dataset dataset = state_->open(name);
  dataset.require_integers(1);
  std::vector<int64_t> wide(dataset.extents()[0]);
  // Unsigned 64-bit values beyond int64 saturate in HDF5's conversion.
  dataset.read_all(H5T_NATIVE_INT64, wide.data());
  std::vector<int32_t> values(wide.size());
  for (size_t i = 0; i < wide.size(); ++i) {
    if (wide[i] < std::numeric_limits<int32_t>::min() || wide[i] > std::numeric_limits<int32_t>::max())
      dataset.fail(fmt::format("row {}: {} is out of range", i, wide[i]));
    values[i] = static_cast<int32_t>(wide[i]);
  }
  return values;
}

IntegerRows Hdf5RowFile::read_rows(const std::string& name, int64_t max_length) const {
  const Hdf5Lock lock;
  const Hdf5Dataset dataset = state_->open(name);
  Hdf5VariableRows rows(dataset, state_->mapped.bytes(), state_->base);
  IntegerRows result;
  result.offsets.reserve(dataset.extents()[0] + 1);
  for (size_t row = 0; row < dataset.extents()[0]; ++row) {
    rows.append(row, max_length, result.values);
    result.offsets.push_back(static_cast<int64_t>(result.values.size()));
  }
  return result;
}

int64_t Hdf5RowFile::count_values(const std::string& name, int64_t max_length) const {
  const Hdf5Lock lock;
  const Hdf5Dataset dataset = state_->open(name);
  Hdf5VariableRows rows(dataset, state_->mapped.bytes(), state_->base);
  int64_t total = 0;
  for (size_t row = 0; row < dataset.extents()[0]; ++row) total += rows.length(row, max_length);
  return total;
}

struct Hdf5RowWriter::State {
  explicit State(const std::filesystem::path& path) : file(path) {}
  Hdf5Output file;

  void write(const std::string& name, hid_t stored, hid_t memory, std::span<const hsize_t> extents,
             const void* data) const {
    const Hdf5Handle space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose);
    Hdf5Handle dataset(H5Dcreate2(file.get(), name.c_str(), stored, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                       H5Dclose);
    if (!dataset) file.fail("create a dataset in");
    if (H5Dwrite(dataset.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0 || !dataset.reset())
      file.fail("write to");
  }

  template <class T>
  void write_rows(const std::string& name, std::span<const T> values, std::span<const int64_t> offsets, hid_t stored,
                  hid_t memory) const {
    TRIREME_CHECK(!offsets.empty() && offsets.back() == static_cast<int64_t>(values.size()), "rows of ", name);
    std::vector<hvl_t> rows(offsets.size() - 1);
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = {static_cast<size_t>(offsets[i + 1] - offsets[i]), const_cast<T*>(values.data() + offsets[i])};
    const Hdf5Lock lock;
    const Hdf5Handle stored_rows(H5Tvlen_create(stored), H5Tclose), memory_rows(H5Tvlen_create(memory), H5Tclose);
    const hsize_t extent = rows.size();
    write(name, stored_rows.get(), memory_rows.get(), {&extent, 1}, rows.data());
  }

  template <class T>
  void write_table(const std::string& name, std::span<const T> values, int64_t columns, hid_t stored,
                   hid_t memory) const {
    const hsize_t width = columns > 0 ? static_cast<hsize_t>(columns) : 1;
    TRIREME_CHECK(values.size() % width == 0, values.size(), " values in rows of ", width);
    const hsize_t extents[2] = {values.size() / width, width};
    const Hdf5Lock lock;
    write(name, stored, memory, std::span(extents).first(columns > 0 ? 2 : 1), values.data());
  }
};

Hdf5RowWriter::Hdf5RowWriter(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {}
Hdf5RowWriter::~Hdf5RowWriter() = default;

void Hdf5RowWriter::write_rows(const std::string& name, std::span<const int8_t> values,
                               std::span<const int64_t> offsets) {
  state_->write_rows(name, values, offsets, H5T_STD_I8LE, H5T_NATIVE_INT8);
}
void Hdf5RowWriter::write_rows(const std::string& name, std::span<const int16_t> values,
                               std::span<const int64_t> offsets) {
  state_->write_rows(name, values, offsets, H5T_STD_I16LE, H5T_NATIVE_INT16);
}
void Hdf5RowWriter::write_table(const std::string& name, std::span<const int8_t> values, int64_t columns) {
  state_->write_table(name, values, columns, H5T_STD_I8LE, H5T_NATIVE_INT8);
}
void Hdf5RowWriter::write_table(const std::string& name, std::span<const int16_t> values, int64_t columns) {
  state_->write_table(name, values, columns, H5T_STD_I16LE, H5T_NATIVE_INT16);
}

void Hdf5RowWriter::commit() { state_->file.commit(); }

}  // namespace trireme
