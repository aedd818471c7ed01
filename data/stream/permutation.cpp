#include "data/stream/permutation.h"

#include "trireme/base/error.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace trireme {

namespace {

/// The finaliser of splitmix64: every input bit changes every output bit with probability one half.
uint64_t mix_bits(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t key) : size_(static_cast<uint64_t>(size)), key_(key) {
  TRIREME_CHECK(size >= 1, "a permutation of ", size);
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2);
}

int64_t Permutation::operator()(int64_t index) const {
  TRIREME_CHECK(index >= 0 && static_cast<uint64_t>(index) < size_, "item ", index, " of ", size_);
  constexpr uint64_t kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round)
      left = std::exchange(right, left ^ (mix_bits(key_ ^ mix_bits(right * kRounds + round)) & mask));
    value = left << half_bits_ | right;
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

}  // namespace trireme
