#pragma once
// Private to formats/: JSON that outsiders wrote. Duplicate keys are refused and nesting is bounded, which the library does not do.

#include "trireme/base/error.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace trireme {

/// Throws Error with `code`: "<what>: <reason>".
nlohmann::json parse_json(std::string_view text, const std::string& what, ExitCode code, int max_depth = 32);

}  // namespace trireme
