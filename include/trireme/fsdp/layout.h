#pragma once
// The position of a unit's parameters in its flat buffer, and the part of that buffer that a rank owns.

#include "trireme/nn/unit.h"

#include <cstdint>
#include <vector>

namespace trireme {

/// Sharded units that may be gathered at a time: the one that computes and two that are being gathered.
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

}  // namespace trireme
