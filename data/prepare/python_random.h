#pragma once
// Python's random.Random(seed): MT19937 seeded by array, with random, randint and shuffle, to reproduce recipes that
// use it (CPython, Modules/_randommodule.c and Lib/random.py; unchanged since Python 3.2).

#include "trireme/base/error.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace trireme {

/// Gives std::mt19937 the state of Matsumoto and Nishimura's init_by_array with the seed's 32-bit words, lowest first,
/// as the key.
class PythonSeed {
 public:
  using result_type = uint32_t;
  explicit PythonSeed(uint64_t seed) : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)} {}

  void generate(uint32_t* state, const uint32_t* end) const {
    const auto n = static_cast<size_t>(end - state), words = size_t{key_[1] != 0 ? 2U : 1U};
    size_t i = 1;
    const auto mixed = [&] { return state[i - 1] ^ (state[i - 1] >> 30); };
    const auto advance = [&] {
      if (++i < n) return;
      state[0] = state[n - 1];
      i = 1;
    };
    state[0] = 19650218u;
    for (; i < n; ++i) state[i] = 1812433253u * mixed() + static_cast<uint32_t>(i);
    i = 1;
    for (size_t k = 0, j = 0; k < n; ++k, j = (j + 1) % words, advance())
      state[i] = (state[i] ^ (mixed() * 1664525u)) + key_[j] + static_cast<uint32_t>(j);
    for (size_t k = 1; k < n; ++k, advance())
      state[i] = (state[i] ^ (mixed() * 1566083941u)) - static_cast<uint32_t>(i);
    state[0] = 0x80000000u;
  }

 private:
  uint32_t key_[2];
};

class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed) {
    PythonSeed words(seed);
    engine_.seed(words);
  }
  uint32_t next_uint32() { return static_cast<uint32_t>(engine_()); }
  /// Uniform in [0, bound), 0 < bound < 2^32: random.randrange(bound).
  uint64_t below(uint64_t bound) {
    // 2^32 itself needs 33 bits, for which Python draws two words.
    TRIREME_CHECK(bound > 0 && bound < (uint64_t{1} << 32), "bound ", bound, " of a random number");
    const int shift = 32 - static_cast<int>(std::bit_width(bound));
    uint64_t value = bound;
    while (value >= bound) value = next_uint32() >> shift;
    return value;
  }
  /// random.randint(first, last): uniform in [first, last].
  int64_t between(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(below(static_cast<uint64_t>(last - first + 1)));
  }
  /// random.random(): 53 bits in [0, 1).
  double uniform() {
    const uint32_t high = next_uint32() >> 5, low = next_uint32() >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }

  /// random.shuffle(values).
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[static_cast<size_t>(below(i))]);
  }

 private:
  std::mt19937 engine_;
};

}  // namespace trireme
