#include "hdf5_dataset.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace trireme {

namespace {

constexpr hsize_t kMaxExtent = hsize_t{1} << 40;
constexpr hsize_t kMaxChunkBytes = hsize_t{1} << 28;  // reading a row decodes its whole chunk

constexpr hsize_t kDeflateHeader = 1024;
constexpr size_t kElementBytes = 16;

hsize_t chunks_along(hsize_t extent, hsize_t chunk) { return extent / chunk + (extent % chunk != 0 ? 1 : 0); }

/// Whether `bytes` are a whole zlib stream of so many bytes, which go to `out` if it is not null.
bool inflates_to(std::vector<unsigned char>& bytes, uint64_t expected, std::vector<unsigned char>* out = nullptr) {
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) throw std::bad_alloc();
  stream.next_in = bytes.data();
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::array<unsigned char, 16384> part{};
  int status = Z_OK;
  while (status == Z_OK && stream.total_out <= expected) {
    stream.next_out = part.data();
    stream.avail_out = part.size();
    status = inflate(&stream, Z_NO_FLUSH);
    if (out != nullptr) out->insert(out->end(), part.begin(), part.end() - stream.avail_out);
  }
  const bool whole = status == Z_STREAM_END && stream.total_out == expected;
  inflateEnd(&stream);
  return whole;
}

constexpr unsigned kExternalFiles = 7;  // number of the message in an object header

#if H5_VERSION_GE(1, 12, 0)
using ObjectInfo = H5O_info1_t;
#else
using ObjectInfo = H5O_info_t;
#endif

}  // namespace

Hdf5Dataset::Hdf5Dataset(hid_t file, const char* name, const std::string& path) : name_(name), path_(path) {
  H5L_info_t link{};
  if (H5Lget_info(file, name, &link, H5P_DEFAULT) < 0) fail("cannot be looked up: " + hdf5_reason());
  if (link.type != H5L_TYPE_HARD) fail("is a link; only data inside the file is read");
  check_header(file, name);
  dataset_ = {H5Dopen2(file, name, H5P_DEFAULT), H5Dclose};
  if (!dataset_)
    fail(fmt::format("cannot be opened by HDF5 {}.{}.{}: {}; if a later HDF5 wrote it, write it with libver='earliest'",
                     H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE, hdf5_reason()));
  const Hdf5Handle properties(H5Dget_create_plist(dataset_.get()), H5Pclose);
  if (H5Pget_layout(properties.get()) == H5D_VIRTUAL) fail("is virtual; only data inside the file is read");
  read_filters(properties.get());
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

/// Refuses what libhdf5 copies out of a header, when it opens a dataset, without looking for the header's end.
void Hdf5Dataset::check_header(hid_t file, const char* name) const {
  ObjectInfo info{};
  if (H5Oget_info_by_name2(file, name, &info, H5O_INFO_BASIC | H5O_INFO_HDR, H5P_DEFAULT) < 0)
    fail("has a header that cannot be read: " + hdf5_reason());
  if (info.type != H5O_TYPE_DATASET) fail("is not a dataset");
  if ((info.hdr.mesg.present >> kExternalFiles & 1) != 0)
    fail("keeps its data in external files; only data inside the file is read");
  const uint64_t base = hdf5_user_block(file, path_);
  const MappedFile mapped(path_, ExitCode::kData);
  if (const char* fault = header_fault(mapped.bytes(), info.addr + base, base)) fail(fault);
}

void Hdf5Dataset::fail(const std::string& what) const {
  throw DataError(fmt::format("{}: dataset {} {}", path_, name_, what));
}

void Hdf5Dataset::require_integers(size_t dimensions) const {
  if (type_class() == H5T_VLEN)
    fail(fmt::format("does not hold integers but lists of variable length: write an array of {} dimension{}",
                     dimensions, dimensions == 1 ? "" : "s, with rows of equal length"));
  if (type_class() != H5T_INTEGER) fail("does not hold integers");
  if (extents_.size() != dimensions) fail(fmt::format("has {} dimensions, expected {}", extents_.size(), dimensions));
}

void Hdf5Dataset::read(int64_t row, hid_t memory_type, void* out) const {
  const Hdf5Handle space(H5Dget_space(dataset_.get()), H5Sclose);
  std::vector<hsize_t> start(extents_.size(), 0), count = extents_;
  start[0] = static_cast<hsize_t>(row);
  count[0] = 1;
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
  check_chunks(start[0], start[0] + 1);
  const Hdf5Handle memory(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), H5Sclose);
  if (H5Dread(dataset_.get(), memory_type, memory.get(), space.get(), H5P_DEFAULT, out) < 0)
    fail(fmt::format("row {} cannot be read ({}): the file is damaged", row, hdf5_reason()));
}

void Hdf5Dataset::read_all(hid_t memory_type, void* out) const {
  check_chunks(0, extents_[0]);
  if (H5Dread(dataset_.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out) < 0)
    fail(fmt::format("cannot be read ({}): the file is damaged", hdf5_reason()));
}

void Hdf5Dataset::read_filters(hid_t properties) {
  const int filters = H5Pget_nfilters(properties);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0;
    size_t elements = 0;
    char filter_name[64] = "";
    const H5Z_filter_t filter = H5Pget_filter2(properties, static_cast<unsigned>(i), &flags, &elements, nullptr,
                                               sizeof filter_name, filter_name, &config);
    if (filter == H5Z_FILTER_DEFLATE && deflate_ < 0) {
      deflate_ = i;
    } else if (filter == H5Z_FILTER_FLETCHER32) {
      checksums_.push_back(i);
    } else if (filter == H5Z_FILTER_SHUFFLE && shuffle_ < 0) {
      shuffle_ = i;
    } else {
      fail(fmt::format("is compressed with filter {} ({}): write it again with gzip or without compression",
                       static_cast<int>(filter), filter_name));
    }
  }
}

void Hdf5Dataset::check_chunks(hsize_t first, hsize_t end) const {
  if (chunk_.empty() || first >= end) return;
  std::vector<hsize_t> at(extents_.size(), 0);
  at[0] = first / chunk_[0] * chunk_[0];
  while (at[0] < end) {
    size_t number = 0;
    for (size_t i = 0; i < at.size(); ++i) number = number * chunks_along(extents_[i], chunk_[i]) + at[i] / chunk_[i];
    if (!checked_.at(number)) check_chunk(at);
    checked_[number] = true;
    for (size_t i = at.size(); i-- > 0;) {
      at[i] += chunk_[i];
      if (i == 0 || at[i] < extents_[i]) break;
      at[i] = 0;
    }
  }
}

void Hdf5Dataset::check_chunk(const std::vector<hsize_t>& at) const {
  unsigned skipped = 0;
  haddr_t address = HADDR_UNDEF;
  hsize_t stored = 0;
  if (H5Dget_chunk_info_by_coord(dataset_.get(), at.data(), &skipped, &address, &stored) < 0)
    fail("has a chunk that cannot be found: " + hdf5_reason());
  if (address == HADDR_UNDEF) return;
  // A writer leaves filters out of a chunk that gains nothing by them.
  const bool deflated = deflate_ >= 0 && (skipped >> deflate_ & 1U) == 0;
  hsize_t before = 0, after = 0;  // bytes of checksums
  for (const int place : checksums_)
    if ((skipped >> place & 1U) == 0) (deflated && place > deflate_ ? after : before) += 4;
  const hsize_t plain = chunk_bytes_ + before;
  if (!deflated) {
    if (stored != plain) fail(fmt::format("has a chunk of {} bytes, expected {}: the file is damaged", stored, plain));
    return;
  }
  std::vector<unsigned char> bytes = stored_chunk(at, stored);
  bytes.resize(bytes.size() - std::min<hsize_t>(after, bytes.size()));
  if (!inflates_to(bytes, plain))
    fail(fmt::format("has a chunk that does not inflate to {} bytes: the file is damaged", plain));
}

std::vector<unsigned char> Hdf5Dataset::stored_chunk(const std::vector<hsize_t>& at, hsize_t stored) const {
  const hsize_t most = 2 * chunk_bytes_ + kDeflateHeader;
  if (stored > most)
    fail(fmt::format("has a compressed chunk of {} bytes, expected {} at the most: the file is damaged", stored, most));
  std::vector<unsigned char> bytes(stored);
  uint32_t mask = 0;
  if (H5Dread_chunk(dataset_.get(), H5P_DEFAULT, at.data(), &mask, bytes.data()) < 0)
    fail(fmt::format("has a chunk that cannot be read ({}): the file is damaged", hdf5_reason()));
  return bytes;
}

std::vector<unsigned char> Hdf5Dataset::chunk(hsize_t row) const {
  if (!checksums_.empty()) fail("has checksums, which are not read here: write it again without");
  if (shuffle_ >= 0 && deflate_ >= 0 && shuffle_ > deflate_) fail("is compressed before it is shuffled");
  const std::vector<hsize_t> at{row};
  check_chunks(row, row + 1);
  unsigned skipped = 0;
  haddr_t address = HADDR_UNDEF;
  hsize_t stored = 0;
  if (H5Dget_chunk_info_by_coord(dataset_.get(), at.data(), &skipped, &address, &stored) < 0 || address == HADDR_UNDEF)
    fail(fmt::format("has no chunk for row {}: {}", row, hdf5_reason()));
  std::vector<unsigned char> bytes = stored_chunk(at, stored);
  if (deflate_ >= 0 && (skipped >> deflate_ & 1U) == 0) {
    std::vector<unsigned char> inflated;
    if (!inflates_to(bytes, chunk_bytes_, &inflated)) fail("has a chunk that changes while it is read");
    bytes = std::move(inflated);
  }
  if (shuffle_ < 0 || (skipped >> shuffle_ & 1U) != 0) return bytes;
  // Byte k of element e is at k * elements + e.
  const size_t size = H5Tget_size(type_.get()), elements = bytes.size() / size;
  std::vector<unsigned char> plain(bytes.size());
  for (size_t e = 0; e < elements; ++e)
    for (size_t k = 0; k < size; ++k) plain[e * size + k] = bytes[k * elements + e];
  return plain;
}

void Hdf5Dataset::require_stored(hid_t properties, hid_t space) {
  hsize_t bytes = H5Tget_size(type_.get());
  for (const hsize_t extent : extents_)
    if (__builtin_mul_overflow(bytes, extent, &bytes)) fail("has extents whose product overflows");
  const H5D_layout_t layout = H5Pget_layout(properties);
  if (layout == H5D_CONTIGUOUS || layout == H5D_COMPACT) {
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
    expected *= chunks_along(extents_[i], chunk[i]);
  }
  if (H5Dget_num_chunks(dataset_.get(), space, &stored) < 0)
    fail("has chunks that cannot be counted: " + hdf5_reason());
  if (stored != expected) fail(fmt::format("has {} of its {} chunks: it was not written completely", stored, expected));
  chunk_ = std::move(chunk);
  checked_.assign(stored, false);
  chunk_bytes_ = chunk_bytes;
}

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
    for (size_t i = 0; i < count; ++i) target[i] = value_at<int16_t>(bytes.data() + 2 * i);
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
