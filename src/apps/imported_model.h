#pragma once
#include "trireme/config/import.h"

#include <string>

namespace trireme {

/// config.json of an imported model.
std::string imported_model_json(const ImportedModel& model);

}  // namespace trireme
