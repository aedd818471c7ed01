#pragma once
// Keys of earlier versions that have another name now.

#include <optional>
#include <string>

#include "yaml_tree.h"

namespace trireme {

/// What to write in place of `entry` of `section`: "precision.frozen is now precision.linear: write 'linear: fp8'".
/// nullopt: never a key.
std::optional<std::string> retired_key_advice(const std::string& section, const YamlEntry& entry);

/// Replaces such keys in a configuration that a run of an earlier version has printed, by what they meant there.
void replace_retired_keys(YamlNode& root);

}  // namespace trireme
