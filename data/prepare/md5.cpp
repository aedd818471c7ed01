#include "data/prepare/md5.h"

#include "trireme/base/file.h"
#include "trireme/base/rounding.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

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

using State = std::array<uint32_t, 4>;

void add_block(State& state, const char* bytes) {
  static const std::array<uint32_t, 64> kSines = sine_table();
  std::array<uint32_t, 16> words{};
  for (size_t i = 0; i < 64; ++i) words[i / 4] |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * (i % 4));
  auto [a, b, c, d] = state;
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
  state[0] += a, state[1] += b, state[2] += c, state[3] += d;
}

}  // namespace

std::string md5_hex(std::string_view text) {
  State state{0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u};
  const size_t whole = text.size() / 64 * 64;
  for (size_t at = 0; at < whole; at += 64) add_block(state, text.data() + at);
  std::string end(text.substr(whole));
  end += '\x80';
  end.resize(round_up(end.size() + 8, 64) - 8, '\0');
  for (int i = 0; i < 8; ++i) end += static_cast<char>(uint64_t{text.size()} * 8 >> (8 * i));
  for (size_t at = 0; at < end.size(); at += 64) add_block(state, end.data() + at);
  std::string hex;
  for (const uint32_t word : state)
    for (int i = 0; i < 4; ++i) hex += fmt::format("{:02x}", (word >> (8 * i)) & 0xFFu);
  return hex;
}

std::string md5_hex_of_file(const std::filesystem::path& path) {
  const MappedFile file(path, ExitCode::kData);
  return md5_hex(file.text());
}

std::string md5_of_digests(std::vector<std::string> hex_digests) {
  std::sort(hex_digests.begin(), hex_digests.end());
  std::string text;
  for (const std::string& digest : hex_digests) text += digest;
  return md5_hex(text);
}

}  // namespace trireme
