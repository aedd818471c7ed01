#pragma once
// Text for terminals.

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme {

/// The text with line breaks in place of spaces so that lines have at most `width` characters; each line after the
/// first begins with `indent` spaces, and the first is taken to begin there too. Longer words stay whole.
std::string wrap(std::string_view text, size_t width, size_t indent);

}  // namespace trireme
