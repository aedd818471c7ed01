#pragma once
// Nouns after numbers.

#include "trireme/base/text.h"

#include <cstdint>
#include <string>

namespace trireme {

/// "1 row", "1,024 rows"; `plural` where it is not the noun with an s.
inline std::string counted(int64_t count, const std::string& noun, const std::string& plural = "") {
  return format_count(count) + " " + (count == 1 ? noun : plural.empty() ? noun + "s" : plural);
}

}  // namespace trireme
