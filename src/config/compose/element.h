#pragma once
// The grammar of values that Hydra's overrides and the arguments of OmegaConf's resolvers share: primitives, quoted
// texts, [lists], {maps}; interpolations stay texts.

#include "trireme/config/compose.h"

#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// What is wrong with a value, for the place that its reader knows.
struct ElementError {
  std::string text;
};

/// A whole value. Throws ElementError.
ConfNode parse_element(std::string_view text, const ConfPlace& place);

/// Arguments of a resolver, split at the commas of the top level. Throws ElementError.
std::vector<ConfNode> parse_elements(std::string_view text, const ConfPlace& place);

/// The position of the } that closes the ${ at `open` ('$'), quotes and nested braces seen; npos: none.
size_t closing_brace(std::string_view text, size_t open);

}  // namespace trireme
