#include "data/prepare/python_random.h"

namespace trireme {

// Matsumoto and Nishimura's init_by_array with the seed's 32-bit words, lowest first, as the key.
PythonRandom::PythonRandom(uint64_t seed) {
  constexpr size_t n = 624;
  state_[0] = 19650218u;
  const auto mixed = [&](size_t i) { return state_[i - 1] ^ (state_[i - 1] >> 30); };
  for (size_t i = 1; i < n; ++i) state_[i] = 1812433253u * mixed(i) + static_cast<uint32_t>(i);
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
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

void PythonRandom::refill() {
  constexpr size_t n = 624, m = 397;
  const auto step = [&](size_t i, size_t next, size_t far) {
    const uint32_t y = (state_[i] & 0x80000000u) | (state_[next] & 0x7fffffffu);
    state_[i] = state_[far] ^ (y >> 1) ^ ((y & 1u) != 0 ? 0x9908b0dfu : 0u);
  };
  for (size_t i = 0; i < n - m; ++i) step(i, i + 1, i + m);
  for (size_t i = n - m; i < n - 1; ++i) step(i, i + 1, i + m - n);
  step(n - 1, 0, m - 1);
  position_ = 0;
}

}  // namespace trireme
