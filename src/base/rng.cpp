#include "trireme/base/rng.h"

#include "trireme/base/hash.h"

#include <bit>

namespace trireme {

uint64_t derive_seed(uint64_t seed, std::string_view name, uint64_t index) {
  const uint64_t named = xxh3_64(name.data(), name.size(), seed);
  return xxh3_64(&index, sizeof index, named);
}

NumpyRandom::NumpyRandom(uint32_t seed) {
  // Matsumoto & Nishimura's init_genrand.
  state_[0] = seed;
  for (uint32_t i = 1; i < 624; ++i) state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
}

void NumpyRandom::refill() {
  constexpr size_t kSize = 624, kFar = 397;
  const auto step = [this](size_t i, size_t next, size_t far) {
    const uint32_t y = (state_[i] & 0x80000000U) | (state_[next] & 0x7FFFFFFFU);
    state_[i] = state_[far] ^ (y >> 1) ^ ((y & 1U) != 0 ? 0x9908B0DFU : 0U);
  };
  for (size_t i = 0; i < kSize - kFar; ++i) step(i, i + 1, i + kFar);
  for (size_t i = kSize - kFar; i < kSize - 1; ++i) step(i, i + 1, i + kFar - kSize);
  step(kSize - 1, 0, kFar - 1);
  position_ = 0;
}

uint64_t NumpyRandom::interval(uint64_t max) {
  if (max == 0) return 0;
  const uint64_t mask = ~uint64_t{0} >> std::countl_zero(max);
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
