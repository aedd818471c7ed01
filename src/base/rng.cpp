#include "trireme/base/rng.h"

#include "trireme/base/hash.h"

namespace trireme {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * counter[0], product1 = uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

uint64_t derive_seed(uint64_t seed, std::string_view name, uint64_t index) {
  const uint64_t named = xxh3_64(name.data(), name.size(), seed);
  return xxh3_64(&index, sizeof index, named);
}

NumpyRandom::NumpyRandom(uint32_t seed) {
  // Matsumoto & Nishimura's init_genrand.
  state_[0] = seed;
  for (uint32_t i = 1; i < 624; ++i) state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
}

uint32_t NumpyRandom::next_uint32() {
  if (position_ == 624) {
    for (int i = 0; i < 624; ++i) {
      const uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % 624] & 0x7FFFFFFFU);
      state_[i] = state_[(i + 397) % 624] ^ (y >> 1) ^ ((y & 1U) != 0 ? 0x9908B0DFU : 0U);
    }
    position_ = 0;
  }
  uint32_t y = state_[position_++];
  y ^= y >> 11;
  y ^= y << 7 & 0x9D2C5680U;
  y ^= y << 15 & 0xEFC60000U;
  return y ^ y >> 18;
}

uint64_t NumpyRandom::interval(uint64_t max) {
  if (max == 0) return 0;
  uint64_t mask = max;
  for (const int shift : {1, 2, 4, 8, 16, 32}) mask |= mask >> shift;
  if (max <= 0xFFFFFFFFU) {
    uint32_t value;
    do value = next_uint32() & static_cast<uint32_t>(mask);
    while (value > max);
    return value;
  }
  uint64_t value;
  do {
    const uint64_t high = next_uint32();
    value = (high << 32 | next_uint32()) & mask;
  } while (value > max);
  return value;
}

}  // namespace trireme
