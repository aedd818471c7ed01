#include "trireme/formats/hdf5/hdf5_tokens.h"

#include "hdf5_dataset.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/formats/numpy/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace trireme {

namespace {

constexpr hsize_t kChunkBytes = 1 << 20;  // a chunk holds as many rows as fit into this size, at least one

}  // namespace

struct Hdf5TokenFile::State {
  std::string path;
  Hdf5Handle file;
  Hdf5Dataset input_ids, loss_mask, seq_start_id;
  MappedFile mapped;                       // with seq_start_id only
  std::optional<Hdf5VariableRows> starts;  // of seq_start_id
  bool has_mask = false, has_starts = false;
  int64_t rows = 0, columns = 0;
};

Hdf5TokenFile::Hdf5TokenFile(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.path = path.string();
  const Hdf5Lock lock;
  s.file = open_hdf5(path);
  const auto has = [&](const char* name) { return hdf5_has(s.file.get(), name, s.path); };
  if (!has("input_ids")) throw DataError(fmt::format("{} has no dataset input_ids", s.path));
  s.input_ids = Hdf5Dataset(s.file.get(), "input_ids", s.path);
  s.input_ids.require_integers(2);
  s.rows = static_cast<int64_t>(s.input_ids.extents()[0]);
  s.columns = static_cast<int64_t>(s.input_ids.extents()[1]);
  if (s.rows == 0 || s.columns == 0) s.input_ids.fail(fmt::format("is empty: [{}, {}]", s.rows, s.columns));
  if (s.columns > (int64_t{1} << 28)) s.input_ids.fail(fmt::format("has rows of {} tokens", s.columns));
  // A row of tokens takes more than that. Compressed rows of nothing can be a thousand to a byte, and the order of the
  // rows takes eight bytes of memory for each.
  if (const uint64_t bytes = std::filesystem::file_size(path); static_cast<uint64_t>(s.rows) > bytes)
    s.input_ids.fail(fmt::format("has {} rows in a file of {} bytes", s.rows, bytes));
  if ((s.has_mask = has("loss_mask"))) {
    s.loss_mask = Hdf5Dataset(s.file.get(), "loss_mask", s.path);
    if (!s.loss_mask.holds_bools()) s.loss_mask.require_integers(2);
    if (s.loss_mask.extents() != s.input_ids.extents()) s.loss_mask.fail("has another shape than input_ids");
  }
  for (const char* name : {"labels", "assistant_masks", "completion_mask", "attention_mask"})
    if (!s.has_mask && has(name))
      throw DataError(fmt::format(
          "{}: '{}' is not read: write a dataset loss_mask [{}, {}], 1 where a token has a loss, otherwise 0", s.path,
          name, s.rows, s.columns));
  s.has_starts = has("seq_start_id");
  if (!s.has_starts && has("position_ids"))
    throw DataError(
        fmt::format("{}: 'position_ids' is not read: write seq_start_id, a list of the starts of each row's "
                    "documents, or remove it",
                    s.path));
  if (s.has_starts) {
    s.seq_start_id = Hdf5Dataset(s.file.get(), "seq_start_id", s.path);
    if (s.seq_start_id.extents().size() != 1)
      s.seq_start_id.fail(
          fmt::format("has {} dimensions, expected 1: a list of variable length for each row of input_ids",
                      s.seq_start_id.extents().size()));
    if (s.seq_start_id.extents() != std::vector<hsize_t>{s.input_ids.extents()[0]})
      s.seq_start_id.fail("does not have one entry for each row of input_ids");
    s.mapped = MappedFile(path, ExitCode::kData);
    s.starts.emplace(s.seq_start_id, s.mapped.bytes(), hdf5_user_block(s.file.get(), s.path));
  }
}

Hdf5TokenFile::~Hdf5TokenFile() {
  if (!state_) return;
  const Hdf5Lock lock;
  state_.reset();
}
Hdf5TokenFile::Hdf5TokenFile(Hdf5TokenFile&&) noexcept = default;
int64_t Hdf5TokenFile::rows() const { return state_->rows; }
int64_t Hdf5TokenFile::columns() const { return state_->columns; }
bool Hdf5TokenFile::has_loss_mask() const { return state_->has_mask; }
bool Hdf5TokenFile::has_seq_start_id() const { return state_->has_starts; }

void Hdf5TokenFile::read_row(int64_t row, std::span<int64_t> input_ids) const {
  TRIREME_CHECK(row >= 0 && row < rows() && static_cast<int64_t>(input_ids.size()) == columns(), "row ", row, " of ",
                rows());
  const Hdf5Lock lock;
  // Unsigned 64-bit ids beyond int64 saturate in HDF5's conversion and are caught by the vocabulary check.
  state_->input_ids.read(row, H5T_NATIVE_INT64, input_ids.data());
}

void Hdf5TokenFile::read_loss_mask(int64_t row, std::span<uint8_t> mask) const {
  TRIREME_CHECK(has_loss_mask() && static_cast<int64_t>(mask.size()) == columns(), "loss_mask row ", row);
  const Hdf5Lock lock;
  std::vector<int64_t> values(mask.size());
  state_->loss_mask.read(row, H5T_NATIVE_INT64, values.data());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0 || values[i] > kMostLossMask)
      state_->loss_mask.fail(
          fmt::format("row {}, column {}: {} is not from 0 to {}", row, i, values[i], kMostLossMask));
    mask[i] = static_cast<uint8_t>(values[i]);
  }
}

std::vector<int64_t> Hdf5TokenFile::read_seq_start_id(int64_t row) const {
  TRIREME_CHECK(has_seq_start_id(), "no seq_start_id");
  const Hdf5Lock lock;
  std::vector<int32_t> starts;
  state_->starts->append(static_cast<size_t>(row), columns(), starts);
  return {starts.begin(), starts.end()};
}

struct Hdf5TokenWriter::State {
  explicit State(const std::filesystem::path& path) : file(path) {}
  ~State() {
    const Hdf5Lock lock;
    for (Hdf5Handle* handle : {&input_ids, &loss_mask, &seq_start_id, &start_type}) (void)handle->reset();
  }
  Hdf5Output file;
  Hdf5Handle input_ids, loss_mask, seq_start_id, start_type;
  Columns columns;
  hsize_t length = 0, rows = 0;

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
    if (!dataset) file.fail("create a dataset in");
    return dataset;
  }

  void write_row(const Hdf5Handle& dataset, hid_t memory_type, int rank, const void* data) const {
    const hsize_t extents[2] = {rows + 1, length}, start[2] = {rows, 0}, count[2] = {1, length};
    if (H5Dset_extent(dataset.get(), extents) < 0) file.fail("extend");
    const Hdf5Handle space(H5Dget_space(dataset.get()), H5Sclose);
    H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start, nullptr, count, nullptr);
    const Hdf5Handle memory(H5Screate_simple(rank, count, nullptr), H5Sclose);
    if (H5Dwrite(dataset.get(), memory_type, memory.get(), space.get(), H5P_DEFAULT, data) < 0) file.fail("write to");
  }
};

Hdf5TokenWriter::Hdf5TokenWriter(const std::filesystem::path& path, int64_t seq_length, Columns columns)
    : state_(std::make_unique<State>(path)) {
  const Hdf5Lock lock;
  State& s = *state_;
  s.columns = columns;
  s.length = static_cast<hsize_t>(seq_length);
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
  const Hdf5Lock lock;
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
  {
    const Hdf5Lock lock;
    if (!s.input_ids.reset() || !s.loss_mask.reset() || !s.seq_start_id.reset()) s.file.fail("finish");
  }
  s.file.commit();
}

}  // namespace trireme
