#pragma once
// MD5 (RFC 1321), with which MLPerf identifies its data files. Not for security.

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

class Md5 {
 public:
  void update(const void* data, size_t size);
  /// 32 lower-case hexadecimal digits; the object must not be used afterwards.
  std::string hex();

 private:
  void block(const uint8_t* bytes);
  std::array<uint32_t, 4> state_{0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u};
  std::array<uint8_t, 64> pending_{};
  uint64_t size_ = 0;
};

std::string md5_hex(std::string_view text);
std::string md5_hex_of_file(const std::filesystem::path& path);

/// MLPerf's hash of a directory: the files' MD5 digests in hexadecimal, sorted, concatenated, and
/// MD5 of that text.
std::string md5_of_digests(std::vector<std::string> hex_digests);

}  // namespace trireme
