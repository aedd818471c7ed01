#pragma once
// Renders a parsed chat template.

#include "data/chat/jinja_syntax.h"

#include <cstddef>
#include <string>
#include <vector>

namespace trireme::jinja {

struct Rendered {
  std::string text;
  /// Bytes [begin, end) of the text, and the message whose round of a loop wrote them; message -1: not known.
  struct Part {
    size_t begin = 0, end = 0;
    int64_t message = -1;
    int loop = 0;  // which of the loops over messages it was
  };
  /// Output of {% generation %} blocks, ascending.
  std::vector<Part> generated;
  /// The output of the loop over the messages (or of the loops that share them) for each message; empty for a template
  /// without such a loop, or whose loops omit a message.
  std::vector<Part> messages;
};

/// The text with the given variables, as jinja2's ImmutableSandboxedEnvironment(trim_blocks, lstrip_blocks) with
/// transformers' additions gives it. TemplateError for what is wrong or not supported, for raise_exception(), and for a
/// template that recurses, runs or writes without end.
/// `for_training`: the parts of the list `messages` of the variables are found, and writing None is an error.
Rendered render(const Body& body, const Dict& variables, bool for_training = false);

}  // namespace trireme::jinja
