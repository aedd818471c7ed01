#pragma once

#include <string>
#include <vector>

namespace trireme {

struct ConfigFamily;

/// The names of the keys that describe_config() explains: "optimizer.lr".
std::vector<std::string> config_keys(const ConfigFamily& family);

}  // namespace trireme
