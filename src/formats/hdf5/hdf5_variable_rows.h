#pragma once
// Private to formats/: rows of a one-dimensional dataset of variable-length integers, read without libhdf5, which
// copies what the global heap declares into buffers of the length that the row declares.

#include "formats/hdf5/hdf5_dataset.h"
#include "formats/hdf5/hdf5_global_heap.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme {

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
