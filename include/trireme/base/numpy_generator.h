#pragma once
// NumPy's np.random.default_rng(seed): PCG64 (O'Neill 2014: 128-bit linear congruential generator, XSL-RR output)
// seeded by SeedSequence. NumPy keeps both streams the same between versions.

#include <cstdint>
#include <span>

namespace trireme {

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
