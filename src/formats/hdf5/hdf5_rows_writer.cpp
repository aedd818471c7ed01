#include "formats/hdf5/hdf5_dataset.h"
#include "trireme/base/error.h"
#include "trireme/base/temporary_file.h"
#include "trireme/formats/hdf5/hdf5_rows.h"

#include <fmt/format.h>

namespace trireme {

struct Hdf5RowWriter::State {
  explicit State(const std::filesystem::path& path) : temporary(path) {}
  TemporaryFile temporary;
  Hdf5Handle file;

  [[noreturn]] void fail(const char* what) const {
    throw WriteError(fmt::format("cannot {} {}: {}", what, temporary.target().string(), hdf5_reason()));
  }

  void write(const std::string& name, hid_t stored, hid_t memory, std::span<const hsize_t> extents,
             const void* data) const {
    const Hdf5Handle space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose);
    Hdf5Handle dataset(H5Dcreate2(file.get(), name.c_str(), stored, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                       H5Dclose);
    if (!dataset) fail("create a dataset in");
    if (H5Dwrite(dataset.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0 || !dataset.reset()) fail("write to");
  }

  template <class T>
  void write_rows(const std::string& name, std::span<const T> values, std::span<const int64_t> offsets, hid_t stored,
                  hid_t memory) const {
    TRIREME_CHECK(!offsets.empty() && offsets.back() == static_cast<int64_t>(values.size()), "rows of ", name);
    std::vector<hvl_t> rows(offsets.size() - 1);
    for (size_t i = 0; i < rows.size(); ++i)
      rows[i] = {static_cast<size_t>(offsets[i + 1] - offsets[i]), const_cast<T*>(values.data() + offsets[i])};
    const std::scoped_lock lock(hdf5_mutex());
    quiet_hdf5();
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
    const std::scoped_lock lock(hdf5_mutex());
    quiet_hdf5();
    write(name, stored, memory, std::span(extents).first(columns > 0 ? 2 : 1), values.data());
  }
};

Hdf5RowWriter::Hdf5RowWriter(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {
  const std::scoped_lock lock(hdf5_mutex());
  quiet_hdf5();
  state_->file = create_hdf5(state_->temporary.path());
  if (!state_->file) state_->fail("create");
}

Hdf5RowWriter::~Hdf5RowWriter() {
  if (!state_) return;
  const std::scoped_lock lock(hdf5_mutex());
  state_->file.reset();
}

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

void Hdf5RowWriter::commit() {
  State& s = *state_;
  {
    const std::scoped_lock lock(hdf5_mutex());
    quiet_hdf5();
    if (H5Fflush(s.file.get(), H5F_SCOPE_GLOBAL) < 0 || !s.file.reset()) s.fail("finish");
  }
  s.temporary.commit();
}

}  // namespace trireme
