#pragma once
// Names that other trainers give to keys of the configuration.

#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// " Did you mean 'optimizer.lr'?" for another trainer's name of a key that the program has; empty otherwise.
/// `offered`: sections and their keys.
std::string suggest_synonym(const std::string& key,
                            const std::vector<std::pair<std::string, std::vector<std::string>>>& offered);

}  // namespace trireme
