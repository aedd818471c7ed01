#pragma once
// The settings with which a run that does not fit would.

#include "trireme/config/config.h"
#include "trireme/plan/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

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

}  // namespace trireme
