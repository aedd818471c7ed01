#include "trireme/fsdp/policy.h"

#include <algorithm>

namespace trireme {

namespace {
constexpr ShardPolicy kPolicies[] = {ShardPolicy::kNone, ShardPolicy::kOptimizer, ShardPolicy::kGradients,
                                     ShardPolicy::kFull};
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
