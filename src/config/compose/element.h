#pragma once
// The grammar of values that Hydra's overrides and the arguments of OmegaConf's resolvers share: primitives, quoted
// texts, [lists], {maps}; interpolations stay texts.

#include "trireme/compose/compose.h"

#include <string>
#include <string_view>
#include <vector>

namespace trireme {

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

}  // namespace trireme
