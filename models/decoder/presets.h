#pragma once
#include "trireme/formats/decoder_config.h"

#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// Published shapes (config.json of each model) and llama-tiny, a shape for tests and the quick start.
std::vector<std::string> llama_preset_names();
/// ConfigError with a suggestion for an unknown name.
DecoderConfig llama_preset(const std::string& name);

}  // namespace trireme
