#include "trireme/fsdp/layout.h"

#include "trireme/base/error.h"

#include <algorithm>

namespace trireme {

namespace {
int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
}  // namespace

UnitLayout make_layout(const UnitSpec& unit, int shard_count) {
  TRIREME_CHECK(shard_count >= 1, "shard count ", shard_count, " of unit ", unit.name);
  UnitLayout layout;
  layout.shard_count = shard_count;
  int64_t next = 0;
  for (const ParameterSpec& parameter : unit.parameters) {
    layout.offsets.push_back(next);
    next = round_up(next + parameter.numel(), UnitLayout::kAlignment);
  }
  layout.numel = round_up(next, UnitLayout::kAlignment * shard_count);
  layout.shard_numel = layout.numel / shard_count;
  return layout;
}

std::vector<LayoutPiece> pieces_in_range(const UnitSpec& unit, const UnitLayout& layout, int64_t begin, int64_t end) {
  std::vector<LayoutPiece> pieces;
  int tensor = 0;
  for (size_t p = 0; p < unit.parameters.size(); ++p) {
    const ParameterSpec& parameter = unit.parameters[p];
    const int64_t row_size = parameter.numel() / parameter.shape[0];
    int64_t tensor_flat = layout.offsets[p];
    for (size_t q = 0; q < parameter.parts.size(); ++q, ++tensor) {
      const int64_t numel = parameter.parts[q].rows * row_size;
      const int64_t from = std::max(begin, tensor_flat), to = std::min(end, tensor_flat + numel);
      if (from < to)
        pieces.push_back({static_cast<int>(p), static_cast<int>(q), tensor, from, from - tensor_flat, to - from});
      tensor_flat += numel;
    }
  }
  return pieces;
}

}  // namespace trireme
