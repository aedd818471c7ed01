#pragma once
// Types of plain scalars.

#include "trireme/compose/compose.h"

#include <string>
#include <string_view>

namespace trireme {

/// A plain scalar of a YAML file as OmegaConf reads it: YAML 1.1's null, bool and int words, floats without a dot too
/// (6e-4); everything else is a text. Fills kind and value of `node`.
void set_yaml_scalar(ConfNode& node, const std::string& text);

/// The same for an unquoted primitive of Hydra's override grammar: true, false and null in any case, integers without
/// leading zeros, floats.
void set_override_scalar(ConfNode& node, const std::string& text);

/// A float as Python's repr() writes it.
std::string python_number(double value);

/// A node of one kind at `place`.
ConfNode text_node(std::string text, const ConfPlace& place);
ConfNode integer_node(int64_t value, const ConfPlace& place);
ConfNode number_node(double value, const ConfPlace& place);

}  // namespace trireme
