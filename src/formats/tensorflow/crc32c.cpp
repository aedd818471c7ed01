// CRC-32C, eight bytes at a time with tables (slicing-by-8: Kounavis and Berry 2005).
#include "trireme/formats/tensorflow/tf_checkpoint.h"

#include <array>
#include <cstring>

namespace trireme {

namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? kPolynomial : 0);
    tables[0][i] = value;
  }
  for (uint32_t i = 0; i < 256; ++i)
    for (size_t t = 1; t < 8; ++t) tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 0xff];
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = 0xffffffff;
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    word ^= crc;
    crc = 0;
    for (size_t t = 0; t < 8; ++t) crc ^= kTables[7 - t][word >> (8 * t) & 0xff];
  }
  for (; at < bytes.size(); ++at) crc = crc >> 8 ^ kTables[0][(crc ^ static_cast<uint32_t>(bytes[at])) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::span<const std::byte> bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

}  // namespace trireme
