#pragma once
// Integer arrays of npy files, mapped or in memory, and their writer.

#include "trireme/base/file.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme {

/// The header of an npy file of version 1.0 as NumPy writes it: little-endian elements in C order, padded so that the
/// data begins at a multiple of 64. `descr`: "<i4".
std::string npy_header_bytes(const std::string& descr, std::span<const int64_t> shape);

/// An integer array in C order whose elements are read one at a time. Const members are thread-safe.
class NpyValues {
 public:
  NpyValues() = default;
  /// Maps a file of <i4, <u4 or <i8. DataError for other content, naming file and problem.
  explicit NpyValues(const std::filesystem::path& path);
  /// In memory.
  template <class T>
  NpyValues(std::vector<T> values, std::vector<int64_t> shape) : shape_(std::move(shape)) {
    static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, uint32_t> || std::is_same_v<T, int64_t>);
    kind_ = std::is_same_v<T, int32_t> ? Kind::kI4 : std::is_same_v<T, uint32_t> ? Kind::kU4 : Kind::kI8;
    auto own = std::make_shared<std::vector<T>>(std::move(values));
    own_ = std::shared_ptr<const std::byte>(own, reinterpret_cast<const std::byte*>(own->data()));
  }

  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size() const;  // elements
  /// Element `index` in C order, which must be below size().
  int64_t at(int64_t index) const {
    const std::byte* base = data();
    switch (kind_) {
      case Kind::kI4: return load<int32_t>(base, index);
      case Kind::kU4: return load<uint32_t>(base, index);
      case Kind::kI8: return load<int64_t>(base, index);
    }
    return 0;
  }
  /// Smallest and largest element; {0, -1} for an empty array.
  std::pair<int64_t, int64_t> range() const;
  /// "file.npy" or "in memory", for messages.
  std::string name() const;
  /// Writes the array to an npy file, atomically. WriteError.
  void save(const std::filesystem::path& path) const;

 private:
  enum class Kind { kI4, kU4, kI8 };
  template <class T>
  static int64_t load(const std::byte* base, int64_t index) {
    T value;
    std::memcpy(&value, base + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return static_cast<int64_t>(value);
  }
  const std::byte* data() const { return own_ ? own_.get() : file_.bytes().data() + offset_; }
  int64_t item_size() const { return kind_ == Kind::kI8 ? 8 : 4; }

  std::vector<int64_t> shape_ = {0};
  Kind kind_ = Kind::kI4;
  MappedFile file_;
  size_t offset_ = 0;
  std::shared_ptr<const std::byte> own_;  // keeps the vector
};

}  // namespace trireme
