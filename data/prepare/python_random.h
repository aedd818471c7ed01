#pragma once
// Python's random.Random(seed): MT19937 seeded by array, getrandbits and shuffle, so that recipes
// that shuffle with it can be reproduced (CPython, Modules/_randommodule.c and Lib/random.py; the
// same order since Python 3.2).

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace trireme {

class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);
  uint32_t next_uint32();
  /// Uniform in [0, bound), 0 < bound < 2^32: random.randrange(bound).
  uint64_t below(uint64_t bound);

  /// random.shuffle(values).
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i)
      std::swap(values[i - 1], values[static_cast<size_t>(below(i))]);
  }

 private:
  std::array<uint32_t, 624> state_{};
  size_t position_ = 624;
};

}  // namespace trireme
