#include "trireme/formats/hdf5_tokens.h"

#include "hdf5_handles.h"
#include "trireme/base/error.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

constexpr hsize_t kMaxExtent = hsize_t{1} << 40;
constexpr hsize_t kMaxChunkBytes = hsize_t{1} << 28;  // a row is read through its whole chunk

/// A dataset that lives in this very file, as bytes this library can decode.
class Dataset {
 public:
  Dataset() = default;
  Dataset(hid_t file, const char* name, const std::string& path) : name_(name), path_(path) {
    H5L_info_t link{};
    if (H5Lget_info(file, name, &link, H5P_DEFAULT) < 0) fail("cannot be looked up: " + hdf5_reason());
    if (link.type != H5L_TYPE_HARD) fail("is a link to elsewhere; only data inside the file is read");
    dataset_ = {H5Dopen2(file, name, H5P_DEFAULT), H5Dclose};
    if (!dataset_) fail("is no dataset: " + hdf5_reason());
    const Hdf5Handle properties(H5Dget_create_plist(dataset_.get()), H5Pclose);
    if (H5Pget_external_count(properties.get()) > 0) fail("keeps its data in external files; only data inside the file is read");
    if (H5Pget_layout(properties.get()) == H5D_VIRTUAL) fail("is virtual; only data inside the file is read");
    const int filters = H5Pget_nfilters(properties.get());
    for (int i = 0; i < filters; ++i) {
      unsigned flags = 0, config = 0;
      size_t elements = 0;
      char filter_name[64] = "";
      const H5Z_filter_t filter =
          H5Pget_filter2(properties.get(), static_cast<unsigned>(i), &flags, &elements, nullptr, sizeof filter_name, filter_name, &config);
      if (filter < 0 || H5Zfilter_avail(filter) <= 0)
        fail(fmt::format("is compressed with filter {} ({}), which this HDF5 lacks: write it again with gzip or without compression",
                         static_cast<int>(filter), filter_name));
    }
    const Hdf5Handle space(H5Dget_space(dataset_.get()), H5Sclose);
    const int rank = H5Sget_simple_extent_ndims(space.get());
    if (rank < 1 || rank > 8) fail(fmt::format("has {} dimensions", rank));
    extents_.resize(static_cast<size_t>(rank));
    H5Sget_simple_extent_dims(space.get(), extents_.data(), nullptr);
    for (const hsize_t extent : extents_)
      if (extent > kMaxExtent) fail(fmt::format("has an extent of {}", extent));
    type_ = {H5Dget_type(dataset_.get()), H5Tclose};
    if (!type_) fail("has no type: " + hdf5_reason());
    require_stored(properties.get(), space.get());
  }

  [[noreturn]] void fail(const std::string& what) const { throw DataError(fmt::format("{}: dataset {} {}", path_, name_, what)); }
  const std::vector<hsize_t>& extents() const { return extents_; }
  H5T_class_t type_class() const { return H5Tget_class(type_.get()); }
  hid_t type() const { return type_.get(); }

  void require_integers(size_t dimensions) const {
    if (type_class() != H5T_INTEGER) fail("does not hold integers");
    if (extents_.size() != dimensions) fail(fmt::format("has {} dimensions, expected {}", extents_.size(), dimensions));
  }

  /// Row `row` of a two-dimensional dataset, or element `row` of a one-dimensional one, in the memory type given.
  void read(int64_t row, hid_t memory_type, void* out) const {
    const Hdf5Handle space(H5Dget_space(dataset_.get()), H5Sclose);
    std::vector<hsize_t> start(extents_.size(), 0), count = extents_;
    start[0] = static_cast<hsize_t>(row);
    count[0] = 1;
    H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
    const Hdf5Handle memory(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), H5Sclose);
    if (H5Dread(dataset_.get(), memory_type, memory.get(), space.get(), H5P_DEFAULT, out) < 0)
      fail(fmt::format("row {} cannot be read ({}): the file is damaged", row, hdf5_reason()));
  }

 private:
  /// Elements that were never written read as zeros, and a few bytes can announce any number of them.
  void require_stored(hid_t properties, hid_t space) const {
    hsize_t bytes = H5Tget_size(type_.get());
    for (const hsize_t extent : extents_)
      if (__builtin_mul_overflow(bytes, extent, &bytes)) fail("has extents whose product overflows");
    const H5D_layout_t layout = H5Pget_layout(properties);
    if (layout == H5D_CONTIGUOUS) {
      const hsize_t stored = H5Dget_storage_size(dataset_.get());
      if (stored < bytes) fail(fmt::format("announces {} bytes and stores {}", bytes, stored));
    }
    if (layout != H5D_CHUNKED) return;
    std::vector<hsize_t> chunk(extents_.size());
    if (H5Pget_chunk(properties, static_cast<int>(chunk.size()), chunk.data()) != static_cast<int>(chunk.size()))
      fail("has chunks of another rank");
    hsize_t chunk_bytes = H5Tget_size(type_.get()), expected = 1, stored = 0;
    for (size_t i = 0; i < chunk.size(); ++i) {
      if (chunk[i] == 0 || __builtin_mul_overflow(chunk_bytes, chunk[i], &chunk_bytes) || chunk_bytes > kMaxChunkBytes)
        fail(fmt::format("has chunks of more than {} bytes: write it again with chunks of a few rows", kMaxChunkBytes));
      expected *= extents_[i] / chunk[i] + (extents_[i] % chunk[i] != 0 ? 1 : 0);
    }
    if (H5Dget_num_chunks(dataset_.get(), space, &stored) < 0) fail("has chunks that cannot be counted: " + hdf5_reason());
    if (stored != expected) fail(fmt::format("has {} of its {} chunks: it was never written whole", stored, expected));
  }

  std::string name_, path_;
  Hdf5Handle dataset_, type_;
  std::vector<hsize_t> extents_;
};

}  // namespace

struct Hdf5TokenFile::State {
  std::string path;
  Hdf5Handle file;
  Dataset input_ids, loss_mask, seq_start_id;
  bool has_mask = false, has_starts = false;
  int64_t rows = 0, columns = 0;
};

Hdf5TokenFile::Hdf5TokenFile(const std::filesystem::path& path) : state_(std::make_unique<State>()) {
  quiet_hdf5();
  State& s = *state_;
  s.path = path.string();
  check_hdf5_superblock(path);
  s.file = {H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose};
  if (!s.file) throw DataError(fmt::format("{} cannot be opened as HDF5: {}", s.path, hdf5_reason()));
  const auto has = [&](const char* name) { return H5Lexists(s.file.get(), name, H5P_DEFAULT) > 0; };
  if (!has("input_ids")) throw DataError(fmt::format("{} has no dataset input_ids", s.path));
  s.input_ids = Dataset(s.file.get(), "input_ids", s.path);
  s.input_ids.require_integers(2);
  s.rows = static_cast<int64_t>(s.input_ids.extents()[0]);
  s.columns = static_cast<int64_t>(s.input_ids.extents()[1]);
  if (s.rows == 0 || s.columns == 0) s.input_ids.fail(fmt::format("is empty: [{}, {}]", s.rows, s.columns));
  if (s.columns > (int64_t{1} << 28)) s.input_ids.fail(fmt::format("has rows of {} tokens", s.columns));
  if ((s.has_mask = has("loss_mask"))) {
    s.loss_mask = Dataset(s.file.get(), "loss_mask", s.path);
    s.loss_mask.require_integers(2);
    if (s.loss_mask.extents() != s.input_ids.extents()) s.loss_mask.fail("has another shape than input_ids");
  }
  if ((s.has_starts = has("seq_start_id"))) {
    s.seq_start_id = Dataset(s.file.get(), "seq_start_id", s.path);
    const Hdf5Handle base(s.seq_start_id.type_class() == H5T_VLEN ? H5Tget_super(s.seq_start_id.type()) : -1, H5Tclose);
    if (!base || H5Tget_class(base.get()) != H5T_INTEGER) s.seq_start_id.fail("does not hold variable-length rows of integers");
    if (s.seq_start_id.extents() != std::vector<hsize_t>{s.input_ids.extents()[0]}) s.seq_start_id.fail("has not one entry for each row of input_ids");
  }
}

Hdf5TokenFile::~Hdf5TokenFile() = default;
Hdf5TokenFile::Hdf5TokenFile(Hdf5TokenFile&&) noexcept = default;
int64_t Hdf5TokenFile::rows() const { return state_->rows; }
int64_t Hdf5TokenFile::columns() const { return state_->columns; }
bool Hdf5TokenFile::has_loss_mask() const { return state_->has_mask; }
bool Hdf5TokenFile::has_seq_start_id() const { return state_->has_starts; }

void Hdf5TokenFile::read_row(int64_t row, std::span<int64_t> input_ids) const {
  TRIREME_CHECK(row >= 0 && row < rows() && static_cast<int64_t>(input_ids.size()) == columns(), "row ", row, " of ", rows());
  quiet_hdf5();
  // Unsigned 64-bit ids beyond int64 saturate in HDF5's conversion and are caught by the vocabulary check.
  state_->input_ids.read(row, H5T_NATIVE_INT64, input_ids.data());
}

void Hdf5TokenFile::read_loss_mask(int64_t row, std::span<uint8_t> mask) const {
  TRIREME_CHECK(has_loss_mask() && static_cast<int64_t>(mask.size()) == columns(), "loss_mask row ", row);
  quiet_hdf5();
  std::vector<int64_t> values(mask.size());
  state_->loss_mask.read(row, H5T_NATIVE_INT64, values.data());
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != 0 && values[i] != 1) state_->loss_mask.fail(fmt::format("row {}, column {}: {} is neither 0 nor 1", row, i, values[i]));
    mask[i] = static_cast<uint8_t>(values[i]);
  }
}

std::vector<int64_t> Hdf5TokenFile::read_seq_start_id(int64_t row) const {
  TRIREME_CHECK(has_seq_start_id(), "no seq_start_id");
  quiet_hdf5();
  const Hdf5Handle type(H5Tvlen_create(H5T_NATIVE_INT64), H5Tclose);
  hvl_t entry{};
  state_->seq_start_id.read(row, type.get(), &entry);
  const auto* values = static_cast<const int64_t*>(entry.p);
  std::vector<int64_t> starts(values, values + entry.len);
  const hsize_t one = 1;
  const Hdf5Handle space(H5Screate_simple(1, &one, nullptr), H5Sclose);
  H5Dvlen_reclaim(type.get(), space.get(), H5P_DEFAULT, &entry);
  return starts;
}

}  // namespace trireme
