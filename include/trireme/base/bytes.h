#pragma once
// Bytes of files and messages as values and as text, in the byte order of this machine.

#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>

namespace trireme {

/// The value at `at`, which need not be aligned.
template <class T>
T value_at(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace trireme
