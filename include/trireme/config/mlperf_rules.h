#pragma once
// What MLPerf's closed division fixes of the benchmarks llama2_70b_lora, llama31_8b and bert.

#include <string>
#include <utility>
#include <vector>

#include "trireme/config/config.h"

namespace trireme {

struct RuleProblem;

/// With logging.mlperf: the keys whose values the closed division of the configuration's benchmark fixes. Without
/// MLPERF_SUBMISSION_DIVISION=open a run is of the closed division.
void check_mlperf_rules(const Config& config, const ConfigFamily& family, std::vector<RuleProblem>& problems);

/// The same of the model and the rows: `found` has their properties by the names of config.json, such as
/// {"hidden_size", "4096"}. ConfigError names all that differ. A name that the benchmark does not fix is ignored.
void check_mlperf_model(const Config& config, const ConfigFamily& family,
                        const std::vector<std::pair<std::string, std::string>>& found);

}  // namespace trireme
