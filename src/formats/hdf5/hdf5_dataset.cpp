#include "formats/hdf5/hdf5_dataset.h"

#include "trireme/base/error.h"

#include <fmt/format.h>

namespace trireme {

namespace {

constexpr hsize_t kMaxExtent = hsize_t{1} << 40;
constexpr hsize_t kMaxChunkBytes = hsize_t{1} << 28;  // reading a row decodes its whole chunk

}  // namespace

Hdf5Dataset::Hdf5Dataset(hid_t file, const char* name, const std::string& path) : name_(name), path_(path) {
  H5L_info_t link{};
  if (H5Lget_info(file, name, &link, H5P_DEFAULT) < 0) fail("cannot be looked up: " + hdf5_reason());
  if (link.type != H5L_TYPE_HARD) fail("is a link; only data inside the file is read");
  dataset_ = {H5Dopen2(file, name, H5P_DEFAULT), H5Dclose};
  if (!dataset_) fail("is not a dataset: " + hdf5_reason());
  const Hdf5Handle properties(H5Dget_create_plist(dataset_.get()), H5Pclose);
  if (H5Pget_external_count(properties.get()) > 0)
    fail("keeps its data in external files; only data inside the file is read");
  if (H5Pget_layout(properties.get()) == H5D_VIRTUAL) fail("is virtual; only data inside the file is read");
  const int filters = H5Pget_nfilters(properties.get());
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0;
    size_t elements = 0;
    char filter_name[64] = "";
    const H5Z_filter_t filter = H5Pget_filter2(properties.get(), static_cast<unsigned>(i), &flags, &elements, nullptr,
                                               sizeof filter_name, filter_name, &config);
    if (filter < 0 || H5Zfilter_avail(filter) <= 0)
      fail(
          fmt::format("is compressed with filter {} ({}), which this HDF5 lacks: write it again "
                      "with gzip or without compression",
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

void Hdf5Dataset::fail(const std::string& what) const {
  throw DataError(fmt::format("{}: dataset {} {}", path_, name_, what));
}

void Hdf5Dataset::require_integers(size_t dimensions) const {
  if (type_class() != H5T_INTEGER) fail("does not hold integers");
  if (extents_.size() != dimensions) fail(fmt::format("has {} dimensions, expected {}", extents_.size(), dimensions));
}

void Hdf5Dataset::read(int64_t row, hid_t memory_type, void* out) const {
  const Hdf5Handle space(H5Dget_space(dataset_.get()), H5Sclose);
  std::vector<hsize_t> start(extents_.size(), 0), count = extents_;
  start[0] = static_cast<hsize_t>(row);
  count[0] = 1;
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
  const Hdf5Handle memory(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), H5Sclose);
  if (H5Dread(dataset_.get(), memory_type, memory.get(), space.get(), H5P_DEFAULT, out) < 0)
    fail(fmt::format("row {} cannot be read ({}): the file is damaged", row, hdf5_reason()));
}

void Hdf5Dataset::require_stored(hid_t properties, hid_t space) const {
  hsize_t bytes = H5Tget_size(type_.get());
  for (const hsize_t extent : extents_)
    if (__builtin_mul_overflow(bytes, extent, &bytes)) fail("has extents whose product overflows");
  const H5D_layout_t layout = H5Pget_layout(properties);
  if (layout == H5D_CONTIGUOUS) {
    const hsize_t stored = H5Dget_storage_size(dataset_.get());
    if (stored < bytes) fail(fmt::format("declares {} bytes and stores {}", bytes, stored));
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
  if (H5Dget_num_chunks(dataset_.get(), space, &stored) < 0)
    fail("has chunks that cannot be counted: " + hdf5_reason());
  if (stored != expected) fail(fmt::format("has {} of its {} chunks: it was not written completely", stored, expected));
}

std::mutex& hdf5_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace trireme
