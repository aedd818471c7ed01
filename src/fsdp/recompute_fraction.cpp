#include "trireme/fsdp/recompute_fraction.h"

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

}  // namespace trireme
