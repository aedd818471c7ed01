#pragma once
// Private to formats/: one dataset of an untrusted file. DataError with file and dataset.

#include "hdf5_bytes.h"
#include "hdf5_file.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme {

/// A dataset whose data is in the same file, contiguous or in chunks, with deflate, shuffle and checksums or none of
/// them; DataError for any other.
class Hdf5Dataset {
 public:
  Hdf5Dataset() = default;
  Hdf5Dataset(hid_t file, const char* name, const std::string& path);

  [[noreturn]] void fail(const std::string& what) const;
  const std::vector<hsize_t>& extents() const { return extents_; }
  H5T_class_t type_class() const { return H5Tget_class(type_.get()); }
  hid_t type() const { return type_.get(); }
  hid_t get() const { return dataset_.get(); }
  void require_integers(size_t dimensions) const;
  bool holds_bools() const { return type_class() == H5T_ENUM; }  // other enumerations are refused
  /// Row `row` of a two-dimensional dataset, or element `row` of a one-dimensional one, converted to the given memory
  /// type.
  void read(int64_t row, hid_t memory_type, void* out) const;
  bool chunked() const { return !chunk_.empty(); }
  hsize_t chunk_rows() const { return chunk_.at(0); }
  /// The stored bytes of the chunk of a one-dimensional dataset that begins at `row`, without its filters. DataError
  /// for a chunk that was never written, and for checksums.
  std::vector<unsigned char> chunk(hsize_t row) const;
  /// All of it, converted to the given memory type.
  void read_all(hid_t memory_type, void* out) const;

 private:
  /// Checks the stored size: HDF5 reads unwritten elements as zeros, so a small file can declare any number of them.
  void require_stored(hid_t properties, hid_t space);
  void read_filters(hid_t properties);
  void check_header(hid_t file, const char* name) const;
  /// Checks that the chunks with elements of rows [first, end) are as long as they must be: libhdf5 1.10 reads whole
  /// chunks from what it finds, however short that is. Each chunk is checked once.
  void check_chunks(hsize_t first, hsize_t end) const;
  void check_chunk(const std::vector<hsize_t>& at) const;
  /// The stored bytes of a chunk of at most so many.
  std::vector<unsigned char> stored_chunk(const std::vector<hsize_t>& at, hsize_t stored) const;

  std::string name_, path_;
  Hdf5Handle dataset_, type_;
  std::vector<hsize_t> extents_, chunk_;  // chunk_: empty if the data is not in chunks
  hsize_t chunk_bytes_ = 0;
  // Places of filters in the order of writing; -1: there is none.
  int shuffle_ = -1, deflate_ = -1;
  std::vector<int> checksums_;         // of 4 bytes each
  mutable std::vector<bool> checked_;  // by chunk, in row-major order
};

/// Rows of a one-dimensional dataset of variable-length integers, read without libhdf5, which copies what the global
/// heap declares into buffers of the length that the row declares.
class Hdf5VariableRows {
 public:
  /// `file`: the whole file; `base`: size of its user block. All outlive this object. DataError unless the dataset
  /// holds such rows, contiguous or in chunks, with deflate and shuffle or without.
  Hdf5VariableRows(const Hdf5Dataset& dataset, std::span<const std::byte> file, uint64_t base);
  /// Entries of a row; DataError above `max_length`.
  int64_t length(size_t row, int64_t max_length);
  /// Appends the entries of a row; DataError for damage, and for values beyond 32 bits.
  void append(size_t row, int64_t max_length, std::vector<int32_t>& out);

 private:
  /// Storage format of an integer.
  struct Layout {
    size_t size = 0;
    bool is_signed = false, big_endian = false;
  };
  /// A stored element: a reference into the global heap.
  struct Element {
    uint32_t length;
    uint64_t address;
    uint32_t index;
  };
  static Layout layout_of(hid_t type);
  static bool decode(std::span<const std::byte> bytes, Layout layout, std::vector<int32_t>& out);
  Element element(size_t row, int64_t max_length);

  const Hdf5Dataset& dataset_;
  Layout layout_;
  Hdf5GlobalHeap heap_;
  std::span<const std::byte> contiguous_;  // all elements
  std::vector<unsigned char> chunk_;       // or those of one chunk
  size_t chunk_number_ = SIZE_MAX;
};

}  // namespace trireme
