#pragma once
// Private to formats/: numbers in the bytes of an HDF5 file.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace trireme {

/// The little-endian number at `at`, which the caller has checked to lie inside.
template <class T>
T load(std::span<const std::byte> bytes, uint64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace trireme
