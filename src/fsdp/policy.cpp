#include "trireme/fsdp/policy.h"

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

}  // namespace trireme
