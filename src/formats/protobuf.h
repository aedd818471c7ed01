#pragma once
// Private to formats/: the wire format of protocol buffers, read from untrusted bytes and written.

#include "trireme/base/bytes.h"

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace trireme {

static_assert(std::endian::native == std::endian::little);

/// Throws the error of a file whose bytes are damaged: `at` counts from where the cursor's offset says.
using DamagedAt = std::function<void(size_t at, const std::string& why)>;

/// Untrusted bytes, consumed from the front. `damaged` when they end too early or a number is out of range.
class ByteCursor {
 public:
  ByteCursor(std::span<const std::byte> bytes, const DamagedAt& damaged, size_t offset = 0)
      : bytes_(bytes), damaged_(damaged), offset_(offset) {}
  bool empty() const { return bytes_.empty(); }
  size_t offset() const { return offset_; }
  std::span<const std::byte> take(uint64_t count) {
    if (count > bytes_.size())
      fail(fmt::format("{} more bytes, but only {} are left (truncated?)", count, bytes_.size()));
    const auto front = bytes_.first(static_cast<size_t>(count));
    bytes_ = bytes_.subspan(front.size());
    offset_ += front.size();
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
    damaged_(offset_, why);
    __builtin_unreachable();
  }

 private:
  std::span<const std::byte> bytes_;
  const DamagedAt& damaged_;
  size_t offset_;
};

enum class WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

/// One field of a message: `bytes` of length-delimited fields, `value` of the others.
struct ProtoField {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t value = 0;
  std::span<const std::byte> bytes;
  size_t at = 0;      // of the field in the file
  size_t offset = 0;  // of `bytes`
  std::string_view text() const { return as_text(bytes); }
};

/// Calls visit for every field of a message in order. `damaged` for groups. `offset`: of the message.
template <class Visit>
void for_each_field(std::span<const std::byte> message, const DamagedAt& damaged, const Visit& visit,
                    size_t offset = 0) {
  ByteCursor cursor(message, damaged, offset);
  while (!cursor.empty()) {
    const size_t at = cursor.offset();
    const uint64_t tag = cursor.varint();
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) cursor.fail(fmt::format("a field has the number {}", tag >> 3));
    ProtoField field;
    field.at = at;
    field.number = static_cast<uint32_t>(tag >> 3);
    field.type = static_cast<WireType>(tag & 7);
    switch (field.type) {
      case WireType::kVarint: field.value = cursor.varint(); break;
      case WireType::kFixed64: field.value = cursor.fixed(8); break;
      case WireType::kFixed32: field.value = cursor.fixed(4); break;
      case WireType::kBytes: {
        const uint64_t length = cursor.varint();
        field.offset = cursor.offset();
        field.bytes = cursor.take(length);
        break;
      }
      default: cursor.fail(fmt::format("field {} has the wire type {}", field.number, tag & 7));
    }
    visit(field);
  }
}

inline void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
inline void put_key(std::string& out, uint32_t field, WireType type) {
  put_varint(out, field << 3 | static_cast<uint32_t>(type));
}
inline void put_int(std::string& out, uint32_t field, int64_t value) {
  put_key(out, field, WireType::kVarint);
  put_varint(out, static_cast<uint64_t>(value));
}
inline void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, WireType::kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

}  // namespace trireme
