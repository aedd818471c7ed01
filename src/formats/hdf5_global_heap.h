#pragma once
// Private to formats/: objects of an HDF5 file's global heap, found in the mapped file without libhdf5.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace trireme {

class Hdf5GlobalHeap {
 public:
  /// `file`: the whole file; addresses count from `base` (the user block's size).
  Hdf5GlobalHeap(std::span<const std::byte> file, uint64_t base) : file_(file), base_(base) {}
  /// The bytes of object `index` of the collection at `address`; empty and `problem` set when the file has none there.
  std::span<const std::byte> object(uint64_t address, uint32_t index, std::string& problem);

 private:
  struct Object {
    uint16_t index;
    std::span<const std::byte> bytes;
  };
  using Objects = std::vector<Object>;  // ascending indices
  const Objects& collection(uint64_t address, std::string& problem);

  std::span<const std::byte> file_;
  uint64_t base_, walked_ = 0;  // bytes of collections met
  std::unordered_map<uint64_t, Objects> collections_;
  uint64_t last_address_ = UINT64_MAX;
  const Objects* last_ = nullptr;
};

}  // namespace trireme
