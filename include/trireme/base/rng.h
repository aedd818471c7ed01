#pragma once
// Random numbers that depend only on (seed, stream, counter), never on rank, thread or call order, and
// NumPy's generators.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// A 64-bit seed for one named purpose: hash(seed, name, index). Stable across releases.
uint64_t derive_seed(uint64_t seed, std::string_view name, uint64_t index = 0);
/// A number in [0, 1), a multiple of 2^-53, of the same hash.
double uniform_draw(uint64_t seed, std::string_view name, uint64_t index = 0);

/// NumPy's legacy generator np.random.RandomState(seed), 0 <= seed < 2^32: sample orders are equal to those of
/// reference implementations in NumPy.
class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}
  uint32_t next_uint32() { return static_cast<uint32_t>(engine_()); }
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
  std::mt19937 engine_;
};

/// NumPy's np.random.default_rng(seed): PCG64 (O'Neill 2014: 128-bit linear congruential generator, XSL-RR output)
/// seeded by SeedSequence. NumPy keeps both streams the same between versions.
class NumpyGenerator {
 public:
  explicit NumpyGenerator(uint64_t seed);
  uint64_t next_uint64();
  /// Halves of next_uint64(), low half first; an unused half is kept for the next call.
  uint32_t next_uint32();
  /// Generator.integers(bound, size=len(out)), 0 < bound <= 2^32, of dtype int64: Lemire's multiplication with
  /// rejection, 32 bits a draw.
  void integers(uint64_t bound, std::span<int64_t> out);

 private:
  __extension__ using Uint128 = unsigned __int128;
  Uint128 state_ = 0, increment_ = 0;
  uint32_t left_over_ = 0;
  bool has_left_over_ = false;
};

}  // namespace trireme
