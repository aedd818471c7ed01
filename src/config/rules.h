#pragma once
// Combinations of values that no run can have, as far as the configuration alone can tell.

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

/// `world_size`: nullopt where the number of ranks is not known. These rules are what a RankGrid
/// (comm/rank_grid.h) needs; all other code asks the grid.
std::vector<RuleProblem> check_rules(const Config& config, const ConfigFamily& family,
                                     std::optional<int64_t> world_size);

}  // namespace trireme
