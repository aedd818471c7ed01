#include "trireme/base/rng.h"

#include "trireme/base/error.h"
#include "trireme/base/hash.h"

#include <array>
#include <bit>

namespace trireme {

uint64_t derive_seed(uint64_t seed, std::string_view name, uint64_t index) {
  const uint64_t named = xxh3_64(name.data(), name.size(), seed);
  return xxh3_64(&index, sizeof index, named);
}

double uniform_draw(uint64_t seed, std::string_view name, uint64_t index) {
  return static_cast<double>(derive_seed(seed, name, index) >> 11) * 0x1p-53;
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

namespace {

__extension__ using Uint128 = unsigned __int128;

constexpr Uint128 kMultiplier = (Uint128{2549297995355413924ull} << 64) | 4865540595714422341ull;

/// np.random.SeedSequence(entropy).generate_state(4, np.uint64): a pool of four words, each mixed with all others, and
/// eight words hashed out of it (numpy/random/bit_generator.pyx; the hash is O'Neill's seed_seq).
std::array<uint64_t, 4> seed_sequence(uint64_t entropy) {
  constexpr uint32_t kInitA = 0x43b0d7e5, kMultiplyA = 0x931e8875, kInitB = 0x8b51f9dd, kMultiplyB = 0x58f38ded;
  constexpr uint32_t kMixLeft = 0xca01f9dd, kMixRight = 0x4973f715;
  uint32_t constant = kInitA;
  const auto hash = [&](uint32_t value) {
    value ^= constant;
    constant *= kMultiplyA;
    value *= constant;
    return value ^ value >> 16;
  };
  const auto mix = [](uint32_t x, uint32_t y) {
    const uint32_t value = kMixLeft * x - kMixRight * y;
    return value ^ value >> 16;
  };
  std::array<uint32_t, 4> pool{};
  pool[0] = hash(static_cast<uint32_t>(entropy));
  pool[1] = hash(static_cast<uint32_t>(entropy >> 32));
  pool[2] = hash(0);
  pool[3] = hash(0);
  for (size_t from = 0; from < 4; ++from)
    for (size_t to = 0; to < 4; ++to)
      if (from != to) pool[to] = mix(pool[to], hash(pool[from]));
  std::array<uint64_t, 4> state{};
  constant = kInitB;
  for (size_t i = 0; i < 8; ++i) {
    uint32_t value = pool[i % 4] ^ constant;
    constant *= kMultiplyB;
    value *= constant;
    value ^= value >> 16;
    state[i / 2] |= uint64_t{value} << (32 * (i % 2));
  }
  return state;
}

}  // namespace

NumpyGenerator::NumpyGenerator(uint64_t seed) {
  const auto words = seed_sequence(seed);
  const Uint128 start = Uint128{words[0]} << 64 | words[1], stream = Uint128{words[2]} << 64 | words[3];
  increment_ = stream << 1 | 1;
  state_ = (increment_ + start) * kMultiplier + increment_;
}

uint64_t NumpyGenerator::next_uint64() {
  state_ = state_ * kMultiplier + increment_;
  const auto high = static_cast<uint64_t>(state_ >> 64), low = static_cast<uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

uint32_t NumpyGenerator::next_uint32() {
  if (has_left_over_) {
    has_left_over_ = false;
    return left_over_;
  }
  const uint64_t word = next_uint64();
  has_left_over_ = true;
  left_over_ = static_cast<uint32_t>(word >> 32);
  return static_cast<uint32_t>(word);
}

void NumpyGenerator::integers(uint64_t bound, std::span<int64_t> out) {
  TRIREME_CHECK(bound > 0 && bound <= uint64_t{1} << 32, "bound ", bound, " of random integers");
  if (bound == 1) {  // one value needs no draw
    for (int64_t& value : out) value = 0;
    return;
  }
  const auto threshold = static_cast<uint32_t>((uint64_t{1} << 32) % bound);
  for (int64_t& value : out) {
    uint64_t product = next_uint32() * bound;
    while (static_cast<uint32_t>(product) < threshold) product = next_uint32() * bound;
    value = static_cast<int64_t>(product >> 32);
  }
}

}  // namespace trireme
