#pragma once
// A trained unit as an optimizer sees it: this rank's flat shard. fsdp/ fills it, optim/ updates it, and a checkpoint
// keeps it; none of them includes the other.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

class Communicator;
class HostState;

/// Consecutive elements of the shard that belong to one checkpoint tensor.
struct ShardRange {
  int64_t begin, end;  // elements of the shard
  int tensor;          // index of the checkpoint tensor inside the unit, the same on every rank
  bool decay;
};

/// A matrix of a linear layer, which an optimizer may update as a whole.
struct ShardMatrix {
  int64_t first;  // its first element in the unit's vector, which holds it row by row
  int64_t rows, columns;
  bool decay;
  int64_t numel() const { return rows * columns; }
  bool operator==(const ShardMatrix&) const = default;
};

struct TrainedShard {
  std::string name;  // name of the unit
  /// [n], fp32, or bf16, which optimizers with OptimizerTraits::bf16_masters round stochastically; in memory of `host`,
  /// if there is one and `compute` is another tensor.
  at::Tensor master;
  /// compute dtype [n]; the same tensor as master if they have one type. Undefined: the unit has no such copy,
  /// its store makes FP8 codes from the masters.
  at::Tensor compute;
  /// Of a unit without `compute`: fp32 [num_tensors], the largest magnitude of this rank's elements of each checkpoint
  /// tensor. An optimizer that writes it in its pass over the masters sets amax_known; otherwise the store reads them.
  at::Tensor amax;
  bool amax_known = false;
  // [n], fp32 or the reduction's dtype, summed over ranks; defined after ShardedUnits::finish_backward()
  at::Tensor gradient;
  std::vector<ShardRange> ranges;  // ascending, without the padding between tensors
  int num_tensors = 0;
  /// Of the random bits with which bf16 masters are rounded, beside step and element. Whoever makes the optimizer sets
  /// it.
  uint32_t rounding_key = 0;
  std::vector<ShardMatrix> matrices;  // of the whole unit, ascending, the same on every rank
  Communicator* group = nullptr;      // the ranks that hold the unit's shards, in order; null: this shard is the unit
  /// Index of the shard's first element among the elements of all trained units. It does not depend on the division of
  /// units.
  int64_t first_element = 0;
  /// The shard's first element and the number of elements in the unit's vector, without the padding of the division.
  int64_t begin = 0, unit_numel = 0;
  /// Number of ranks of the world that hold this same shard, and the index of this rank among them. Sums over the world
  /// are divided by the number of holders.
  int copies = 1, copy = 0;

  /// Where master weights and moments wait for the optimizer, which takes them through the device; null: they are
  /// there.
  HostState* host = nullptr;
  /// Of a shard with a `host`, may be empty: an optimizer calls it in its pass with the new master weights on the
  /// device, when `amax` is that of all of them.
  std::function<void(const at::Tensor& master)> updated;

  /// The device of gradients, and of what is computed.
  at::Device device() const { return compute.defined() ? compute.device() : amax.device(); }
  bool has_compute_copy() const { return compute.defined() && !compute.is_same(master); }
  /// Writes `compute` from `master`.
  void update_compute() const {
    if (has_compute_copy()) compute.copy_(master);
  }
};

/// The kinds of tensors of the training state. The last three are scalars, equal on all ranks.
enum class StateKind { kMaster, kFirstMoment, kSecondMoment, kOptimizerSteps, kLossScale, kGrowthTracker };

/// A tensor that a checkpoint restores: a vector over the elements of a shard, or a scalar.
struct StateTensor {
  StateKind kind;
  const TrainedShard* shard = nullptr;  // the shard that has these elements; null: a scalar
  at::Tensor tensor;                    // [n] or []: the tensor itself, not a copy
};

}  // namespace trireme
