#pragma once
// What the HTML pages of the tools share: text made safe, and a page's head with colours for light and dark.

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme {

/// For text and attribute values: &, <, > and " as entities, control characters as '?', at most `limit` bytes, whole
/// UTF-8 only.
std::string html_escaped(std::string_view text, size_t limit = 300);

/// The page up to its body's heading. `style`: CSS after that of all pages, which has the colours --back, --text,
/// --faint and --line for both colour schemes, and tables.
std::string html_head(const std::string& title, std::string_view style);

}  // namespace trireme
