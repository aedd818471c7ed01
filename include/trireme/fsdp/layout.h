#pragma once
// Where the parameters of a unit lie in its flat buffer, and which part of that buffer a rank owns.

#include "trireme/nn/unit.h"

#include <cstdint>
#include <vector>

namespace trireme {

/// Units that may be whole at a time: the one that computes and two on their way.
constexpr int kGatherSlots = 3;

struct UnitLayout {
  std::vector<int64_t> offsets;  // first element of each parameter; multiples of kAlignment
  int64_t numel = 0;             // of the flat buffer, padded so that it cuts evenly: shard_numel * shard_count
  int64_t shard_numel = 0;
  int shard_count = 1;

  /// 128 elements: every parameter and every shard starts on a 128-byte boundary even in FP8.
  static constexpr int64_t kAlignment = 128;
};

UnitLayout make_layout(const UnitSpec& unit, int shard_count);

/// The intersection of checkpoint tensors with elements [begin, end) of the flat buffer.
struct LayoutPiece {
  int parameter, part;          // indices into the spec
  int tensor;                   // running index of the checkpoint tensor in the unit
  int64_t flat_begin;           // in the flat buffer
  int64_t tensor_begin, count;  // in the flattened checkpoint tensor
};
std::vector<LayoutPiece> pieces_in_range(const UnitSpec& unit, const UnitLayout& layout, int64_t begin, int64_t end);

}  // namespace trireme
