#pragma once

#include <string>
#include <vector>

namespace trireme {

struct ConfigFamily;

/// The names of the keys that describe_config() explains: "optimizer.lr".
std::vector<std::string> config_keys(const ConfigFamily& family);

/// docs/reference/keys.md: Markdown tables of every key of these programs with what it accepts, its default, the
/// programs that take it and its meaning.
std::string key_reference(const std::vector<ConfigFamily>& families);

}  // namespace trireme
