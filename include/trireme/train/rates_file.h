#pragma once
// Files of a machine's rates: what `trireme calibrate` writes, and parallel.rates and `trireme simulate --rates` read.

#include "trireme/config/config.h"
#include "trireme/fsdp/machine_rates.h"

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trireme {

/// YAML: `name`, the device's name, and any of rate_keys(). A rate that the file does not give is that of the built-in
/// table for the name. ConfigError with file, line and column of everything that is wrong.
MachineRates read_rates(const std::filesystem::path& file);

/// The rates of parallel.rates; nothing without it.
std::optional<MachineRates> configured_rates(const Config& config);

/// The file's text: `notes` as comments, then the name and those rates that are in `measured`, by RateKey::name.
std::string rates_text(const MachineRates& rates, const std::set<std::string>& measured,
                       const std::vector<std::string>& notes);

}  // namespace trireme
