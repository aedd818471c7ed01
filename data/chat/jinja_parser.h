#pragma once
// Parses a chat template: the statements and expressions of Jinja 3.1 that chat templates use.

#include "data/chat/jinja_lexer.h"
#include "data/chat/jinja_syntax.h"

#include <string_view>

namespace trireme::jinja {

/// `source`: normalised. TemplateError for wrong syntax and for statements that are not supported. Whether filters and
/// tests exist is known when they run.
Body parse_template(std::string_view source);

}  // namespace trireme::jinja
