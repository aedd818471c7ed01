#include "data/prepare/python_random.h"

#include "trireme/base/error.h"

#include <bit>

namespace trireme {

// Matsumoto and Nishimura's init_by_array with the seed's 32-bit words, lowest first, as the key.
PythonRandom::PythonRandom(uint64_t seed) {
  constexpr size_t n = 624;
  state_[0] = 19650218u;
  const auto mixed = [&](size_t i) { return state_[i - 1] ^ (state_[i - 1] >> 30); };
  for (size_t i = 1; i < n; ++i) state_[i] = 1812433253u * mixed(i) + static_cast<uint32_t>(i);
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed),
                                       static_cast<uint32_t>(seed >> 32)};
  const size_t words = key[1] != 0 ? 2 : 1;
  size_t i = 1;
  const auto advance = [&] {
    if (++i < n) return;
    state_[0] = state_[n - 1];
    i = 1;
  };
  for (size_t k = 0, j = 0; k < n; ++k, j = (j + 1) % words, advance())
    state_[i] = (state_[i] ^ (mixed(i) * 1664525u)) + key[j] + static_cast<uint32_t>(j);
  for (size_t k = 1; k < n; ++k, advance())
    state_[i] = (state_[i] ^ (mixed(i) * 1566083941u)) - static_cast<uint32_t>(i);
  state_[0] = 0x80000000u;
}

uint32_t PythonRandom::next_uint32() {
  constexpr size_t n = 624, m = 397;
  if (position_ == n) {
    for (size_t i = 0; i < n; ++i) {
      const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % n] & 0x7fffffffu);
      state_[i] = state_[(i + m) % n] ^ (y >> 1) ^ ((y & 1u) != 0 ? 0x9908b0dfu : 0u);
    }
    position_ = 0;
  }
  uint32_t y = state_[position_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

uint64_t PythonRandom::below(uint64_t bound) {
  // 2^32 itself would take 33 bits, which Python draws as two words.
  TRIREME_CHECK(bound > 0 && bound < (uint64_t{1} << 32), "bound ", bound, " of a random number");
  const int bits = static_cast<int>(std::bit_width(bound));
  uint64_t value = bound;
  while (value >= bound) value = next_uint32() >> (32 - bits);
  return value;
}

}  // namespace trireme
