#pragma once
// parallel.recompute as a share of the blocks: which of them backward recomputes whole.

#include "trireme/nn/recompute.h"

#include <vector>

namespace trireme {

/// fms-fsdp's rule (selective_checkpointing, at its HEAD): with i from 1 and a threshold c that starts at 1/2, block i
/// is recomputed if i * fraction >= c, and c then rises by 1. The recomputed blocks are spread evenly: 1/3 of 15 blocks
/// takes the second of every three. fraction <= 0 takes none, >= 1 all; the comparison is in double, as there. One
/// entry per block, kFull or kNone.
std::vector<Recompute> recompute_fraction(int num_blocks, double fraction);

}  // namespace trireme
