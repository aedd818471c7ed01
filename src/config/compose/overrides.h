#pragma once
// Overrides of the command line.

#include "trireme/compose/compose.h"

#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct ConfOverride {
  enum class Kind { kChange, kAdd, kForce, kDelete } kind = Kind::kChange;  // a=b, +a=b, ++a=b, ~a
  std::string key;
  std::string package;            // of group@package=choice
  std::optional<ConfNode> value;  // nullopt: ~key alone
  ConfPlace place;
};

/// Those that cannot be read are problems.
std::vector<ConfOverride> parse_overrides(const std::vector<std::string>& overrides, ConfProblems& problems);

/// Changes one value of the tree.
void apply_override(ConfNode& root, const ConfOverride& override_, ConfProblems& problems);

/// Maps into maps; anything else replaces.
void merge_conf(ConfNode& into, const ConfNode& from);

}  // namespace trireme
