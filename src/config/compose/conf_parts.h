#pragma once
// Private to compose/: types of plain scalars, the grammar of values, overrides of the command line.

#include "trireme/compose/compose.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// A plain scalar of a YAML file as OmegaConf reads it: YAML 1.1's null, bool and int words, floats without a dot too
/// (6e-4); everything else is a text.
ConfNode yaml_scalar(const std::string& text, const ConfPlace& place);

/// The same for an unquoted primitive of Hydra's override grammar: true, false and null in any case, integers without
/// leading zeros, floats.
ConfNode override_scalar(const std::string& text, const ConfPlace& place);

// The grammar of values that Hydra's overrides and the arguments of OmegaConf's resolvers share: primitives, quoted
// texts, [lists], {maps}; interpolations stay texts.

/// The problem of a value, to which its reader adds the place.
struct ElementError {
  std::string text;
};

/// A whole value. Throws ElementError.
ConfNode parse_element(std::string_view text, const ConfPlace& place);

/// Arguments of a resolver, split at the commas of the top level. Throws ElementError.
std::vector<ConfNode> parse_elements(std::string_view text, const ConfPlace& place);

/// The position of the } that closes the ${ at `open` ('$'), quotes and nested braces seen; npos: none.
size_t closing_brace(std::string_view text, size_t open);

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
