#pragma once
// The division of a unit among the ranks of a shard group, the position of its parameters in its flat buffer, and the
// part of that buffer that a rank owns.

#include "trireme/nn/unit.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace trireme {

/// Number of sharded units that may be gathered at a time: the unit that computes and two units that are being
/// gathered.
constexpr int kGatherSlots = 3;

struct UnitLayout {
  std::vector<int64_t> offsets;  // first element of each parameter; multiples of kAlignment
  int64_t numel = 0;             // elements of the flat buffer, padded to shard_numel * shard_count
  int64_t shard_numel = 0;
  int shard_count = 1;

  /// 128 elements: every parameter and every shard starts at a 128-byte boundary even in FP8.
  static constexpr int64_t kAlignment = 128;
};

UnitLayout make_layout(const UnitSpec& unit, int shard_count);

/// The intersections of the unit's checkpoint tensors with elements [begin, end) of the flat buffer, in ascending
/// order.
struct LayoutPiece {
  int parameter, part;          // indices into the spec
  int tensor;                   // running index of the checkpoint tensor in the unit
  int64_t flat_begin;           // first element in the flat buffer
  int64_t tensor_begin, count;  // first element and number of elements in the flattened checkpoint tensor
};
std::vector<LayoutPiece> pieces_in_range(const UnitSpec& unit, const UnitLayout& layout, int64_t begin, int64_t end);

/// Each policy divides what the one before it divides, and more.
enum class ShardPolicy {
  kNone,       // nothing: gradients go through an all-reduce (DDP)
  kOptimizer,  // master weights and moments; gradients are whole until the last micro-batch's reduce-scatter (ZeRO-1)
  kGradients,  // gradients too: reduce-scattered into fp32 shards in every micro-batch (ZeRO-2)
  kFull,       // weights too: they are gathered for each use (ZeRO-3, FSDP)
};

/// "none", "optimizer", "gradients", "full".
const char* policy_name(ShardPolicy policy);
/// nullopt for any other word, such as "auto".
std::optional<ShardPolicy> parse_policy(std::string_view word);

/// Which state of a unit is divided over a shard group of `shard_size` ranks. `resident`: a frozen unit that stays
/// whole.
struct UnitDivision {
  bool weights = false;  // a rank has its shard of the weights, which are gathered for each use
  bool state = false;    // trained: a rank updates its shard of the master weights and moments only
  bool any() const { return weights || state; }
};
UnitDivision divide_unit(const UnitSpec& unit, int shard_size, ShardPolicy policy, bool resident);

/// Per unit: whether it is trained, has matrices of linear layers, and these are multiplied with `recipe`, an FP8
/// recipe. Of the trained units with such matrices the first `compute_first` and the last `compute_last` stay in the
/// compute dtype. With kCompute all entries are false.
std::vector<bool> trained_in_fp8(const std::vector<UnitSpec>& units, Recipe recipe, int64_t compute_first,
                                 int64_t compute_last);

}  // namespace trireme
