#include "trireme/base/wrap.h"

#include "trireme/base/text.h"

#include <algorithm>

namespace trireme {

std::string wrap(std::string_view text, size_t width, size_t indent) {
  const auto characters = [](std::string_view word) {
    return static_cast<size_t>(std::count_if(word.begin(), word.end(),
                                             [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; }));
  };
  const std::string margin = "\n" + std::string(indent, ' ');
  std::string result;
  size_t column = indent;
  for (const std::string& word : split(text, ' ')) {
    const size_t length = characters(word);
    if (column > indent && column + 1 + length > width) {
      result += margin;
      column = indent;
    } else if (!result.empty()) {
      result += ' ';
      ++column;
    }
    result += word;
    column += length;
  }
  return result;
}

}  // namespace trireme
