#include "recompute_fraction.h"

#include <algorithm>

namespace trireme {

std::vector<Recompute> recompute_fraction(int num_blocks, double fraction) {
  std::vector<Recompute> blocks(static_cast<size_t>(num_blocks), Recompute::kNone);
  double threshold = 0.5;
  for (int i = 1; i <= num_blocks; ++i) {
    if (i * fraction < threshold) continue;
    blocks[static_cast<size_t>(i - 1)] = Recompute::kFull;
    threshold += 1;
  }
  return blocks;
}

int recomputed_blocks(int num_blocks, double fraction) {
  const std::vector<Recompute> blocks = recompute_fraction(num_blocks, fraction);
  return static_cast<int>(std::count(blocks.begin(), blocks.end(), Recompute::kFull));
}

}  // namespace trireme
