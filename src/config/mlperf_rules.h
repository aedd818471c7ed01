#pragma once
// Values that MLPerf fixes.

#include <vector>

#include "rules.h"

namespace trireme {

/// llama31_8b, pre-training with logging.mlperf and without a lora section: what the closed division fixes. Nothing
/// where MLPERF_SUBMISSION_DIVISION names another division.
void check_mlperf_pretraining(const Config& config, const ConfigFamily& family, std::vector<RuleProblem>& problems);

}  // namespace trireme
