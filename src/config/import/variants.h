#pragma once
#include "trireme/config/import.h"

#include <string>
#include <vector>

namespace trireme {

/// fms-fsdp's get_model_config(): "llama2_7b", "llama3_8b_4k" …; dashes count as underscores, a bare "7b" as llama2_7b.
/// nullopt: no such Llama.
std::optional<ImportedModel> fms_variant(const std::string& name);
std::vector<std::string> fms_variant_names();

/// torchtitan's llama3 flavors: "8B", "70B", "405B", "debugmodel".
std::optional<ImportedModel> torchtitan_flavor(const std::string& flavor);
std::vector<std::string> torchtitan_flavor_names();

}  // namespace trireme
