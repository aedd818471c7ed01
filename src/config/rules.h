#pragma once
// Checks combinations of values that are impossible in any run, as far as the configuration alone shows.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/config/config.h"

namespace trireme {

struct RuleProblem {
  std::string key;                 // "section.key" that the message points at
  std::vector<std::string> needs;  // all keys that the rule looked at
  std::string text;
};

/// All broken rules, in the order of the checks. `world_size`: nullopt where the number of ranks is not known. A
/// configuration that passes with the number of ranks has sizes that a RankGrid (comm/rank_grid.h) takes.
std::vector<RuleProblem> check_rules(const Config& config, const ProgramKeys& program,
                                     std::optional<int64_t> world_size);

}  // namespace trireme
