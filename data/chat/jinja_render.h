#pragma once
// Renders a parsed chat template.

#include "data/chat/jinja_lexer.h"
#include "data/chat/jinja_syntax.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace trireme::jinja {

struct Rendered {
  std::string text;
  /// What {% generation %} blocks gave: bytes [first, second) of the text, ascending.
  std::vector<std::pair<size_t, size_t>> generated;
};

/// The text with the given variables, as jinja2's ImmutableSandboxedEnvironment(trim_blocks, lstrip_blocks) with
/// transformers' additions gives it. TemplateError for what is wrong or not supported, for raise_exception(), and for a
/// template that recurses, runs or writes without end.
Rendered render(const Body& body, const Dict& variables);

}  // namespace trireme::jinja
