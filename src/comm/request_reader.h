#pragma once
// Private to comm/: the fields of a request to the key server, which any process may have sent.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace trireme {

/// Reads numbers and texts from the bytes of a request; `ok` becomes false at the first that is not there.
struct RequestReader {
  const char* at;
  size_t left;
  bool ok = true;

  template <class T>
  T number() {
    T value{};
    if (left < sizeof value) {
      ok = false;
      return value;
    }
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    left -= sizeof value;
    return value;
  }
  std::string text() {
    const auto size = number<uint32_t>();
    if (!ok || left < size) {
      ok = false;
      return {};
    }
    std::string value(at, size);
    at += size;
    left -= size;
    return value;
  }
  std::vector<std::string> texts() {
    std::vector<std::string> values;
    while (ok && left > 0) values.push_back(text());
    return values;
  }
};

}  // namespace trireme
