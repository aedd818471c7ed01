#pragma once
// What an optimizer sees of a trained unit: this rank's flat shard. fsdp/ fills it, optim/ updates it; neither knows
// the other.

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
  std::string name;                // of the unit
  at::Tensor master;               // fp32 [n]
  at::Tensor compute;              // compute dtype [n]; the same tensor as master when the compute dtype is fp32
  at::Tensor gradient;             // fp32 [n], summed over ranks; defined after ShardedUnits::finish_backward()
  std::vector<ShardRange> ranges;  // ascending, without the padding between tensors
  int num_tensors = 0;
  /// How many ranks of the world hold this same shard; sums over the world divide by it.
  int copies = 1;
};

}  // namespace trireme
