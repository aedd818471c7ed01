#pragma once
// A pseudo-random order of any number of items without a table of them.

#include <cstdint>

namespace trireme {

/// A permutation of 0 … size-1 chosen by `key`: a Feistel network over the next even power of two, applied again until
/// the value is below size (cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). At most
/// four applications on average. The permutation is the same on every machine.
class Permutation {
 public:
  Permutation(int64_t size, uint64_t key);
  int64_t operator()(int64_t index) const;

 private:
  uint64_t size_, key_;
  int half_bits_;
};

}  // namespace trireme
