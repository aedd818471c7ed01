#pragma once
// Private to formats/: reads a table in LevelDB's format (leveldb, doc/table_format.md), and the wire format of
// protocol buffers.

#include "trireme/base/error.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace trireme {

/// Untrusted bytes, consumed from the front. ModelError when they end too early or a number is out of range.
class ByteCursor {
 public:
  ByteCursor(std::span<const std::byte> bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}
  bool empty() const { return bytes_.empty(); }
  size_t left() const { return bytes_.size(); }
  std::span<const std::byte> take(uint64_t count) {
    if (count > bytes_.size()) fail(fmt::format("{} bytes are needed, {} are left", count, bytes_.size()));
    const auto front = bytes_.first(static_cast<size_t>(count));
    bytes_ = bytes_.subspan(static_cast<size_t>(count));
    return front;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint64_t>(take(1)[0]);
      if (shift == 63 && byte > 1) break;
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    fail("a number is longer than 64 bits");
  }
  uint64_t fixed(size_t size) {
    uint64_t value = 0;
    const auto bytes = take(size);
    for (size_t i = 0; i < size; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    return value;
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw ModelError(fmt::format("{}: {}; the file is damaged", what_, why));
  }

 private:
  std::span<const std::byte> bytes_;
  std::string what_;
};

/// One field of a message: `bytes` for length-delimited fields, `number` for the others.
struct ProtoField {
  uint32_t number = 0;
  uint64_t value = 0;
  std::span<const std::byte> bytes;
};
/// Calls visit for every field in order. ModelError for groups.
void for_each_field(std::span<const std::byte> message, const std::string& what,
                    const std::function<void(const ProtoField&)>& visit);

/// Calls visit for every key and value in order; keys must ascend. `what`: the file, for messages.
void for_each_entry(std::span<const std::byte> table, const std::string& what,
                    const std::function<void(const std::string& key, std::span<const std::byte> value)>& visit);

}  // namespace trireme
