#pragma once
// JSON that outsiders wrote. Duplicate keys are refused and nesting is bounded, which the library
// does not do.

#include "trireme/base/error.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace trireme {

/// Throws Error with `code`: "<what>: <reason>".
nlohmann::json parse_json(std::string_view text, const std::string& what, ExitCode code, int max_depth = 32);

/// The member `key`; null where there is none, or where `object` is something else.
inline nlohmann::json member(const nlohmann::json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object.at(key) : nlohmann::json();
}

}  // namespace trireme
