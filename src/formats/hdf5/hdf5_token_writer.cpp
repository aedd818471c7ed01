#include "trireme/formats/hdf5/hdf5_tokens.h"

#include "formats/hdf5/hdf5_handles.h"
#include "trireme/base/error.h"
#include "trireme/base/temporary_file.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

constexpr hsize_t kChunkBytes = 1 << 20;  // a chunk holds as many rows as fit into this size, at least one

}  // namespace

struct Hdf5TokenWriter::State {
  explicit State(const std::filesystem::path& path) : temporary(path) {}
  TemporaryFile temporary;
  Hdf5Handle file, input_ids, loss_mask, seq_start_id, start_type;
  Columns columns;
  hsize_t length = 0, rows = 0;

  [[noreturn]] void fail(const char* what) const {
    throw WriteError(fmt::format("cannot {} {}: {}", what, temporary.target().string(), hdf5_reason()));
  }

  Hdf5Handle create(const char* name, hid_t type, int rank) const {
    const hsize_t extents[2] = {0, length}, limits[2] = {H5S_UNLIMITED, length};
    const hsize_t row_bytes = std::max<hsize_t>(1, length * H5Tget_size(type));
    const hsize_t chunk[2] = {rank == 1 ? 1024 : std::max<hsize_t>(1, kChunkBytes / row_bytes), length};
    const Hdf5Handle space(H5Screate_simple(rank, extents, limits), H5Sclose);
    const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(properties.get(), rank, chunk);
    // Without checksums HDF5 does not detect flipped bits. It has no checksums for variable-length rows.
    if (H5Tget_class(type) != H5T_VLEN) H5Pset_fletcher32(properties.get());
    Hdf5Handle dataset(H5Dcreate2(file.get(), name, type, space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT),
                       H5Dclose);
    if (!dataset) fail("create a dataset in");
    return dataset;
  }

  void write_row(const Hdf5Handle& dataset, hid_t memory_type, int rank, const void* data) const {
    const hsize_t extents[2] = {rows + 1, length}, start[2] = {rows, 0}, count[2] = {1, length};
    if (H5Dset_extent(dataset.get(), extents) < 0) fail("extend");
    const Hdf5Handle space(H5Dget_space(dataset.get()), H5Sclose);
    H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start, nullptr, count, nullptr);
    const Hdf5Handle memory(H5Screate_simple(rank, count, nullptr), H5Sclose);
    if (H5Dwrite(dataset.get(), memory_type, memory.get(), space.get(), H5P_DEFAULT, data) < 0) fail("write to");
  }
};

Hdf5TokenWriter::Hdf5TokenWriter(const std::filesystem::path& path, int64_t seq_length, Columns columns)
    : state_(std::make_unique<State>(path)) {
  quiet_hdf5();
  State& s = *state_;
  s.columns = columns;
  s.length = static_cast<hsize_t>(seq_length);
  s.file = create_hdf5(s.temporary.path());
  if (!s.file) s.fail("create");
  s.input_ids = s.create("input_ids", H5T_STD_I32LE, 2);
  if (columns.loss_mask) s.loss_mask = s.create("loss_mask", H5T_STD_U8LE, 2);
  if (columns.seq_start_id) {
    s.start_type = {H5Tvlen_create(H5T_STD_I32LE), H5Tclose};
    s.seq_start_id = s.create("seq_start_id", s.start_type.get(), 1);
  }
}

Hdf5TokenWriter::~Hdf5TokenWriter() = default;

void Hdf5TokenWriter::append(std::span<const int32_t> input_ids, std::span<const uint8_t> loss_mask,
                             std::span<const int32_t> seq_start_id) {
  State& s = *state_;
  TRIREME_CHECK(input_ids.size() == s.length, "a row of ", input_ids.size(), " tokens in a file of rows of ", s.length);
  s.write_row(s.input_ids, H5T_NATIVE_INT32, 2, input_ids.data());
  if (s.columns.loss_mask) {
    TRIREME_CHECK(loss_mask.size() == s.length, "a loss_mask of ", loss_mask.size(), " entries for rows of ", s.length);
    s.write_row(s.loss_mask, H5T_NATIVE_UINT8, 2, loss_mask.data());
  }
  if (s.columns.seq_start_id) {
    const Hdf5Handle type(H5Tvlen_create(H5T_NATIVE_INT32), H5Tclose);
    const hvl_t entry{seq_start_id.size(), const_cast<int32_t*>(seq_start_id.data())};
    s.write_row(s.seq_start_id, type.get(), 1, &entry);
  }
  ++s.rows;
}

void Hdf5TokenWriter::commit() {
  State& s = *state_;
  const bool closed = s.input_ids.reset() && s.loss_mask.reset() && s.seq_start_id.reset() &&
                      H5Fflush(s.file.get(), H5F_SCOPE_GLOBAL) >= 0 && s.file.reset();
  if (!closed) s.fail("finish");
  s.temporary.commit();
}

}  // namespace trireme
