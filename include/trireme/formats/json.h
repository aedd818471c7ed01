#pragma once
// Parses untrusted JSON: duplicate keys are refused and the nesting is bounded, which the library does not do.

#include "trireme/base/error.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace trireme {

/// Throws Error with `code`: "<what>: <reason>".
nlohmann::json parse_json(std::string_view text, const std::string& what, ExitCode code, int max_depth = 32);

/// The same, with the keys of objects in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what, ExitCode code,
                                          int max_depth = 32);

/// The member `key`; null if there is none or `object` is not an object.
inline nlohmann::json member(const nlohmann::json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object.at(key) : nlohmann::json();
}

}  // namespace trireme
