#include "formats/hdf5/hdf5_dataset.h"
#include "formats/hdf5/hdf5_variable_rows.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/formats/hdf5/hdf5_rows.h"

#include <fmt/format.h>

#include <limits>

namespace trireme {

struct Hdf5RowFile::State {
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
};

Hdf5RowFile::Hdf5RowFile(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path.string();
  const std::scoped_lock lock(hdf5_mutex());
  s.file = open_hdf5(path);
  s.mapped = MappedFile(path, ExitCode::kData);
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
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
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
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
  const Hdf5Dataset dataset = state_->open(name);
  Hdf5VariableRows rows(dataset, state_->mapped.bytes(), state_->base);
  int64_t total = 0;
  for (size_t row = 0; row < dataset.extents()[0]; ++row) total += rows.length(row, max_length);
  return total;
}

}  // namespace trireme
