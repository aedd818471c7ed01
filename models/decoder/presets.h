#pragma once
#include "models/decoder/config.h"

#include <string>
#include <vector>

namespace trireme {

/// Published shapes of all families (config.json of each model) and llama-tiny, a shape for tests and the quick start.
std::vector<std::string> decoder_preset_names();
/// ConfigError with a suggestion for an unknown name.
DecoderConfig decoder_preset(const std::string& name);

}  // namespace trireme
