#pragma once
// Private to formats/: what no model can look like, whichever file says so.

#include "trireme/formats/decoder_config.h"

#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

/// Problems of a shape whose fields are positive; empty if there are none. A shape without problems has at most 2^50
/// parameters, so sizes computed from it fit 64 bits.
std::vector<std::string> shape_problems(const DecoderConfig& config);

/// ModelError: a file stands where the directory of a model is expected.
[[noreturn]] void refuse_file_for_directory(const std::filesystem::path& path);

}  // namespace trireme
