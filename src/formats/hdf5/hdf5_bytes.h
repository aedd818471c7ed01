#pragma once
// Private to formats/: what is read of an HDF5 file's bytes without libhdf5: the superblock and object headers, to
// check them before libhdf5 does, and the objects of the global heap.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace trireme {

/// DataError unless the file starts with an HDF5 superblock whose addresses lie inside the file: others make libhdf5
/// 1.10 allocate and fill gigabytes.
void check_hdf5_superblock(const std::filesystem::path& path);

/// What is wrong with the datatype or the layout of the dataset whose header is at `at` of the file; null: nothing.
/// Types that are no numbers, no texts of fixed length, no bools and no variable-length rows of numbers are refused:
/// libhdf5 1.10 copies the names of compounds, enumerations and opaque types without looking for the end of the header.
/// Chunks of no elements are refused: it divides by their extents. `base`: the user block's size.
const char* header_fault(std::span<const std::byte> file, uint64_t at, uint64_t base);

/// The problem of a collection that begins at `bytes`, which may be incomplete; null: nothing in that part. libhdf5
/// 1.10 copies objects that exceed their collection, and never ends at free space of no size.
const char* heap_collection_fault(std::span<const std::byte> bytes);

class Hdf5GlobalHeap {
 public:
  /// `file`: the whole file; addresses are relative to `base` (the user block's size).
  Hdf5GlobalHeap(std::span<const std::byte> file, uint64_t base) : file_(file), base_(base) {}
  /// The bytes of object `index` of the collection at `address`. If there is none: empty, and `problem` says why.
  std::span<const std::byte> object(uint64_t address, uint32_t index, std::string& problem);

 private:
  struct Object {
    uint16_t index;
    std::span<const std::byte> bytes;
  };
  using Objects = std::vector<Object>;  // ascending indices
  const Objects& collection(uint64_t address, std::string& problem);

  std::span<const std::byte> file_;
  uint64_t base_, walked_ = 0;  // bytes of all collections read so far
  std::unordered_map<uint64_t, Objects> collections_;
  uint64_t last_address_ = UINT64_MAX;
  const Objects* last_ = nullptr;
};

}  // namespace trireme
