#include "trireme/fsdp/layout.h"

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"

#include <algorithm>

namespace trireme {

namespace {

constexpr ShardPolicy kPolicies[] = {ShardPolicy::kNone, ShardPolicy::kOptimizer, ShardPolicy::kGradients,
                                     ShardPolicy::kFull};

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

const char* policy_name(ShardPolicy policy) {
  switch (policy) {
    case ShardPolicy::kNone: return "none";
    case ShardPolicy::kOptimizer: return "optimizer";
    case ShardPolicy::kGradients: return "gradients";
    case ShardPolicy::kFull: return "full";
  }
  return "?";
}

std::optional<ShardPolicy> parse_policy(std::string_view word) {
  for (const ShardPolicy policy : kPolicies)
    if (word == policy_name(policy)) return policy;
  return std::nullopt;
}

UnitDivision divide_unit(const UnitSpec& unit, int shard_size, ShardPolicy policy, bool resident) {
  if (shard_size == 1 || unit.replicated) return {};
  if (!unit.trained) return {.weights = !resident, .state = false};
  return {.weights = policy == ShardPolicy::kFull, .state = policy != ShardPolicy::kNone};
}

std::vector<bool> trained_in_fp8(const std::vector<UnitSpec>& units, Recipe recipe, int64_t compute_first,
                                 int64_t compute_last) {
  const auto is_block = [](const UnitSpec& unit) { return unit.trained && unit.has_linear(); };
  const int64_t blocks = std::count_if(units.begin(), units.end(), is_block);
  std::vector<bool> fp8;
  for (int64_t block = 0; const UnitSpec& unit : units) {
    fp8.push_back(recipe != Recipe::kCompute && is_block(unit) && block >= compute_first &&
                  block < blocks - compute_last);
    block += is_block(unit) ? 1 : 0;
  }
  return fp8;
}

}  // namespace trireme
