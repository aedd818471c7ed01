#pragma once
// Cuts a chat template into tokens, with the white space control of Jinja's trim_blocks and lstrip_blocks.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::jinja {

/// A template that cannot be rendered, and where. The caller adds the file.
struct TemplateError {
  size_t offset = 0;  // bytes of the source
  std::string what;
};

enum class TokenKind {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kText,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;   // of kText: its value
  size_t offset = 0;  // in the source
  int64_t integer = 0;
  double real = 0;
};

/// The source as Jinja reads it: line ends are \n, and one at the end is dropped.
std::string normalised_source(std::string_view source);

/// Tokens of a normalised source, a kEnd last. TemplateError.
std::vector<Token> tokenise(std::string_view source);

}  // namespace trireme::jinja
