#pragma once
// Private to formats/: reads objects of an HDF5 file's global heap from the mapped file, without libhdf5; checks heap
// collections before libhdf5 reads them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace trireme {

/// What is wrong with a collection that begins at `bytes`, of which only a part may be there; null: nothing in that
/// part. libhdf5 1.10 copies objects that exceed their collection, and never ends at free space of no size.
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
