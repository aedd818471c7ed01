#pragma once
// Private to comm/: numbers and texts as bytes, in the byte order of the hosts, which a job shares.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace trireme::wire {

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// Appends the text, after its length (uint32).
inline void append_text(std::string& bytes, const std::string& text) {
  bytes += bytes_of(static_cast<uint32_t>(text.size()));
  bytes += text;
}

/// Reads bytes that any process may have sent; `ok` becomes false at the first that is not there.
struct Reader {
  const char* at;
  size_t left;
  bool ok = true;

  template <class T>
  T number() {
    T value{};
    ok = ok && left >= sizeof value;
    if (!ok) return value;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    left -= sizeof value;
    return value;
  }
  std::string text() {
    const auto size = number<uint32_t>();
    ok = ok && left >= size;
    if (!ok) return {};
    std::string value(at, size);
    at += size;
    left -= size;
    return value;
  }
  /// Up to the end.
  std::vector<std::string> texts() {
    std::vector<std::string> values;
    while (ok && left > 0) values.push_back(text());
    return values;
  }
};

}  // namespace trireme::wire
