#pragma once
// Python's random.Random(seed): MT19937 seeded by array, with random, randint and shuffle, to reproduce recipes that
// use it (CPython, Modules/_randommodule.c and Lib/random.py; unchanged since Python 3.2).

#include "trireme/base/error.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace trireme {

class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);
  uint32_t next_uint32() {
    if (position_ == state_.size()) refill();
    uint32_t y = state_[position_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
  }
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
  void refill();
  std::array<uint32_t, 624> state_{};
  size_t position_ = 624;
};

}  // namespace trireme
