#pragma once

#include <string>
#include <vector>

namespace trireme {

struct ConfigFamily;

/// The names of the keys that describe_config() explains: "optimizer.lr".
std::vector<std::string> config_keys(const ConfigFamily& family);

/// What the description of a key says of its values. `key`: "data.train", or an optional section that is left out,
/// "lora".
struct KeyTraits {
  bool path = false;        // a path, or several: may differ from host to host
  bool may_change = false;  // a run that goes on may have another value
};
KeyTraits key_traits(const std::string& key);

/// docs/reference/keys.md: Markdown tables of every key of these programs with what it accepts, its default, the
/// programs that take it and its meaning.
std::string key_reference(const std::vector<ConfigFamily>& families);

}  // namespace trireme
