#pragma once
// Values that MLPerf's closed division fixes for the benchmarks llama2_70b_lora, llama31_8b and bert.

#include <string>
#include <utility>
#include <vector>

#include "trireme/config/config.h"

namespace trireme {

struct RuleProblem;

/// With logging.mlperf, adds a problem for each key that differs from the value of the benchmark's closed division. A
/// run belongs to it if MLPERF_SUBMISSION_DIVISION is closed, or is not set in a run of llama31_8b. If the variable is
/// not set for another benchmark, check_mlperf_model() decides.
void check_mlperf_rules(const Config& config, const ProgramKeys& program, std::vector<RuleProblem>& problems);

/// Checks the model and the rows: `found` has their properties by the names of config.json, such as {"hidden_size",
/// "4096"}. ConfigError names all differences. Names that the benchmark does not fix are ignored. If
/// check_mlperf_rules() has not decided on the division, a run with all values of the closed division is closed; any
/// other run is open, with a warning. Returns the division for the log: "closed" or "open".
std::string check_mlperf_model(const Config& config, const ProgramKeys& program,
                               const std::vector<std::pair<std::string, std::string>>& found);

}  // namespace trireme
