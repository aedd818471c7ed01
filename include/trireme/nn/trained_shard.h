#pragma once
// A trained unit as an optimizer sees it: this rank's flat shard. fsdp/ fills it and optim/ updates it; neither
// includes the other.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// A run of elements of the shard that belongs to one checkpoint tensor.
struct ShardRange {
  int64_t begin, end;  // elements of the shard
  int tensor;          // index of the checkpoint tensor inside the unit, the same on every rank
  bool decay;
};

struct TrainedShard {
  std::string name;    // name of the unit
  at::Tensor master;   // fp32 [n]
  at::Tensor compute;  // compute dtype [n]; the same tensor as master if the compute dtype is fp32
  // [n], fp32 or the reduction's dtype, summed over ranks; defined after ShardedUnits::finish_backward()
  at::Tensor gradient;
  std::vector<ShardRange> ranges;  // ascending, without the padding between tensors
  int num_tensors = 0;
  /// Number of the shard's first element among those of all trained units: does not depend on how a unit is divided.
  int64_t first_element = 0;
  /// Number of ranks of the world that hold this same shard; sums over the world divide by it.
  int copies = 1;
};

}  // namespace trireme
