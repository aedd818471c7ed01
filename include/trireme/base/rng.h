#pragma once
// Random numbers that depend only on (seed, stream, counter), never on rank, thread or call order.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// A 64-bit seed for one named purpose: hash(seed, name, index). Stable across releases.
uint64_t derive_seed(uint64_t seed, std::string_view name, uint64_t index = 0);

/// NumPy's legacy generator np.random.RandomState(seed), 0 <= seed < 2^32: sample orders are equal to those of
/// reference implementations in NumPy.
class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed);
  uint32_t next_uint32() {
    if (position_ == 624) refill();
    uint32_t y = state_[static_cast<size_t>(position_++)];
    y ^= y >> 11;
    y ^= y << 7 & 0x9D2C5680U;
    y ^= y << 15 & 0xEFC60000U;
    return y ^ y >> 18;
  }
  /// Uniform in [0, max], by masked rejection as RandomState does.
  uint64_t interval(uint64_t max);
  /// RandomState.shuffle of a one-dimensional array; the draws do not depend on the elements' type.
  template <class T>
  void shuffle(std::span<T> values) {
    // The partners do not depend on the values: drawn ahead, they are in the cache when they are swapped.
    std::array<uint64_t, 64> partners;
    for (size_t last = values.empty() ? 0 : values.size() - 1; last > 0;) {
      const size_t count = std::min(partners.size(), last);
      for (size_t i = 0; i < count; ++i) {
        partners[i] = interval(last - i);
        __builtin_prefetch(&values[partners[i]], 1);
      }
      for (size_t i = 0; i < count; ++i, --last) std::swap(values[last], values[partners[i]]);
    }
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    shuffle(std::span<T>(values));
  }

 private:
  void refill();
  std::array<uint32_t, 624> state_{};
  int position_ = 624;
};

}  // namespace trireme
