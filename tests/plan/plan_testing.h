#pragma once
// Models and inputs of the tests of plans.
#include "../base/base_testing.h"
#include "trireme/plan/search.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace trireme::testing {

inline constexpr int64_t kMiB = 1 << 20;
inline constexpr int kBlocks = 8;

/// Eight frozen blocks of 64 Mi elements (128 MiB in bf16) and a replicated adapter.
inline std::vector<UnitSpec> frozen_model() {
  std::vector<UnitSpec> units;
  for (int i = 0; i < kBlocks; ++i) {
    UnitSpec unit;
    unit.name = "layers." + std::to_string(i);
    unit.parameters.push_back({"w", {8192, 8192}, {{"w" + std::to_string(i), 8192}}, Init::kNormal, 0.02, true});
    units.push_back(unit);
  }
  UnitSpec adapters;
  adapters.name = "adapters";
  adapters.trained = adapters.replicated = true;
  adapters.parameters.push_back({"a", {16, 8192}, {{"a", 16}}, Init::kUniform, 0.01, true});
  units.push_back(adapters);
  return units;
}

/// Communication, overhead and the optimizer's pass take no time.
inline PlanInput input_for(const std::vector<UnitSpec>& units, int world, int64_t memory) {
  PlanInput input;
  MachineRates& rates = input.rates;
  rates.link_bytes = rates.network_bytes = rates.memory_bytes = std::numeric_limits<double>::infinity();
  rates.collective_start = rates.ring_link_step = rates.ring_network_step = rates.tree_link_step =
      rates.tree_network_step = rates.step_overhead = rates.block_overhead = rates.waiting = 0;
  input.units = &units;
  input.world_size = world;
  input.device_memory = memory;
  input.num_blocks = kBlocks;
  input.row.saved = 50 * kMiB;
  input.row.saved_input = 5 * kMiB;
  input.row.working = input.row.working_kept = 50 * kMiB;
  return input;
}

inline TrainingPlan best_plan(const PlanInput& input) { return find_plan(input).value(); }

inline int recomputed(const TrainingPlan& plan) {
  return static_cast<int>(plan.recompute.size() -
                          std::count(plan.recompute.begin(), plan.recompute.end(), Recompute::kNone));
}
inline int count(const TrainingPlan& plan, Recompute what) {
  return static_cast<int>(std::count(plan.recompute.begin(), plan.recompute.end(), what));
}

/// Eight trained blocks; a block has 128 MiB in bf16, 256 of master weights and 512 of moments.
inline std::vector<UnitSpec> trained_model() {
  std::vector<UnitSpec> units = frozen_model();
  units.pop_back();
  for (UnitSpec& unit : units) unit.trained = true;
  return units;
}

}  // namespace trireme::testing
