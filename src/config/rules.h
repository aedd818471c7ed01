#pragma once
// Combinations of values that no run can have, as far as the configuration alone can tell.

#include <functional>
#include <string>
#include <vector>

#include "trireme/config/config.h"

namespace trireme {

struct RuleProblem {
  std::string key;                 // "section.key" that the message points at
  std::vector<std::string> needs;  // all keys that the rule looked at
  std::string text;
};

std::vector<RuleProblem> check_rules(const Config& config, Program program);

}  // namespace trireme
