#pragma once
// The memory plan of a run, and the settings that would make one fit.

#include "trireme/config/config.h"
#include "trireme/plan/plan.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// What a plan is made for. Config and model outlive it.
struct PlanQuestion {
  const Config& config;
  const PlannedModel& model;
  int ranks = 1;
  bool gpu = false;
  int64_t device_memory = 0;            // bytes of each rank's device
  std::string device_name{};            // as its driver gives it; empty: not known
  int ranks_per_host = 0;               // 0: all ranks are on one host
  std::optional<MachineRates> rates{};  // instead of those of device_name
  /// The same for another configuration, which outlives it, and number of ranks.
  PlanQuestion with(const Config& other, int other_ranks) const {
    return {other, model, other_ranks, gpu, device_memory, device_name, ranks_per_host, rates};
  }
};

PlanInput plan_input(const PlanQuestion& question);

/// Another configuration or number of ranks, and what it changes.
struct PlanHint {
  std::vector<std::string> settings;  // "batch.micro_batch_size: 4": keys of the configuration, or "16 ranks"
  Config config;
  int ranks = 1;
  int64_t saved = 0;    // bytes per rank that the least plan takes less
  int64_t lacking = 0;  // bytes that still lack; 0 or less: it fits
  std::string text() const;
};

/// Settings that would save memory, those first with which the run fits, of these the least intrusive first; then the
/// others, the largest saving first. None of them saves nothing. Where no setting alone is enough but several together
/// are, those together come first.
std::vector<PlanHint> plan_hints(const PlanQuestion& question);

/// The plan of the run; ConfigError when none fits, with where the memory goes and the first three hints.
MemoryPlan plan_run(const PlanQuestion& question);

}  // namespace trireme
