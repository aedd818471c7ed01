#include "data/prepare/md5.h"

#include "trireme/base/file.h"

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace trireme {
namespace {

// RFC 1321: entry i is floor(2^32 * |sin(i + 1)|).
std::array<uint32_t, 64> sine_table() {
  std::array<uint32_t, 64> table{};
  for (size_t i = 0; i < 64; ++i)
    table[i] = static_cast<uint32_t>(std::floor(std::fabs(std::sin(static_cast<double>(i + 1))) * 4294967296.0));
  return table;
}

constexpr int kShifts[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

}  // namespace

void Md5::update(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  while (size > 0) {
    const size_t filled = size_ % 64;
    if (filled == 0 && size >= 64) {
      block(bytes);
      bytes += 64, size -= 64, size_ += 64;
      continue;
    }
    const size_t take = std::min(size, 64 - filled);
    std::memcpy(pending_.data() + filled, bytes, take);
    bytes += take, size -= take, size_ += take;
    if (size_ % 64 == 0) block(pending_.data());
  }
}

std::string Md5::hex() {
  const uint64_t bits = size_ * 8;
  const uint8_t end = 0x80, zero = 0;
  update(&end, 1);
  while (size_ % 64 != 56) update(&zero, 1);
  std::array<uint8_t, 8> length{};
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (8 * i));
  update(length.data(), 8);
  std::string text;
  for (const uint32_t word : state_)
    for (int i = 0; i < 4; ++i) text += fmt::format("{:02x}", (word >> (8 * i)) & 0xFFu);
  return text;
}

void Md5::block(const uint8_t* bytes) {
  static const std::array<uint32_t, 64> kSines = sine_table();
  std::array<uint32_t, 16> words{};
  for (size_t i = 0; i < 64; ++i) words[i / 4] |= static_cast<uint32_t>(bytes[i]) << (8 * (i % 4));
  auto [a, b, c, d] = state_;
  for (uint32_t i = 0; i < 64; ++i) {
    uint32_t mix = 0, word = 0;
    switch (i / 16) {
      case 0: mix = (b & c) | (~b & d), word = i; break;
      case 1: mix = (d & b) | (~d & c), word = 5 * i + 1; break;
      case 2: mix = b ^ c ^ d, word = 3 * i + 5; break;
      default: mix = c ^ (b | ~d), word = 7 * i; break;
    }
    const uint32_t sum = a + mix + kSines[i] + words[word % 16];
    a = d, d = c, c = b;
    b += std::rotl(sum, kShifts[i / 16][i % 4]);
  }
  state_[0] += a, state_[1] += b, state_[2] += c, state_[3] += d;
}

std::string md5_hex(std::string_view text) {
  Md5 md5;
  md5.update(text.data(), text.size());
  return md5.hex();
}

std::string md5_hex_of_file(const std::filesystem::path& path) {
  const MappedFile file(path, ExitCode::kData);
  return md5_hex({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
}

std::string md5_of_digests(std::vector<std::string> hex_digests) {
  std::sort(hex_digests.begin(), hex_digests.end());
  std::string text;
  for (const std::string& digest : hex_digests) text += digest;
  return md5_hex(text);
}

}  // namespace trireme
