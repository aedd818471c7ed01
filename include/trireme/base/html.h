#pragma once
// Parts of the tools' HTML pages: escaped text, and a page's head with colours for light and dark.

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme {

/// For text and attribute values: &, <, > and " as entities, control characters as '?', at most `limit` bytes, whole
/// UTF-8 only.
std::string html_escaped(std::string_view text, size_t limit = 300);

/// CSS: the colours --back, --text, --faint and --line, for light and dark.
inline constexpr const char* kPageColours = R"(
:root{color-scheme:light dark;--back:#fff;--text:#1a1d21;--faint:#6b7280;--line:#d8dce2}
@media (prefers-color-scheme:dark){:root{--back:#14171a;--text:#e4e7eb;--faint:#9aa3af;--line:#353b43}})";

/// The page up to its body's heading. `style`: CSS that follows the common CSS (kPageColours and tables).
std::string html_head(const std::string& title, std::string_view style);

}  // namespace trireme
