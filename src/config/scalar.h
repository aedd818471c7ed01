#pragma once
// YAML 1.2 scalars, read strictly: no octal, no 1e3 for an integer, no yes/no, no inf or nan.

#include <cstdint>
#include <string>

#include "yaml_tree.h"

namespace trireme {

enum class Plain { kString, kInteger, kNumber, kBool, kNull };

/// What a plain scalar means in YAML 1.2's core schema; a quoted one is a string.
Plain plain_type(const YamlNode& node);

/// Each fills `value` and returns "" or, where the node is no such value, the hint to print: " Did you mean 'x'?" or
/// more words (a single space if there is none).
std::string read_integer(const YamlNode& node, int64_t& value);
std::string read_number(const YamlNode& node, double& value);
std::string read_bool(const YamlNode& node, bool& value);

/// A node as part of "… must be x, not <this>".
std::string node_text(const YamlNode& node);

}  // namespace trireme
