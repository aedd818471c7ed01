#pragma once
// What MLPerf's closed division fixes of the benchmarks llama2_70b_lora, llama31_8b and bert.

#include <string>
#include <utility>
#include <vector>

#include "trireme/config/config.h"

namespace trireme {

struct RuleProblem;

/// With logging.mlperf: the keys whose values the closed division of the configuration's benchmark fixes, if the run is
/// of that division: MLPERF_SUBMISSION_DIVISION says closed, or says nothing of a run of llama31_8b. Where it says
/// nothing of another benchmark, check_mlperf_model() decides.
void check_mlperf_rules(const Config& config, const ConfigFamily& family, std::vector<RuleProblem>& problems);

/// The same of the model and the rows: `found` has their properties by the names of config.json, such as
/// {"hidden_size", "4096"}. ConfigError names all that differ. A name that the benchmark does not fix is ignored. Where
/// check_mlperf_rules() leaves the division open, a run with all values of the closed division is closed; another one
/// is open, which a warning says. Returns the division for the log: "closed" or "open".
std::string check_mlperf_model(const Config& config, const ConfigFamily& family,
                               const std::vector<std::pair<std::string, std::string>>& found);

}  // namespace trireme
