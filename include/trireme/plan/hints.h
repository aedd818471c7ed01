#pragma once
// Settings that reduce the memory of a run that does not fit.

#include "trireme/config/config.h"
#include "trireme/plan/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// A changed configuration or number of ranks, and its effect.
struct PlanHint {
  std::vector<std::string> settings;  // "batch.micro_batch_size: 4": keys of the configuration, or "16 ranks"
  Config config;
  int ranks = 1;
  int64_t saved = 0;    // bytes per rank by which the least plan becomes smaller
  int64_t lacking = 0;  // bytes by which it still exceeds the memory; 0 or less: it fits
  std::string text() const;
};

/// Settings that save memory. Settings with which the run fits come first, the least intrusive first; then the others,
/// the largest saving first. If no single setting is enough but a combination is, the combination comes first.
std::vector<PlanHint> plan_hints(const PlanQuestion& question);

}  // namespace trireme
