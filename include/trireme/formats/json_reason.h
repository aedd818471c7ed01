#pragma once
// What the JSON library's exceptions say, without its own codes.

#include <nlohmann/json.hpp>

#include <string>

namespace trireme {

/// "line 1, column 7: unexpected '}'; expected '[', '{', or a literal" from "[json.exception.parse_error.101] parse
/// error at line 1, column 7: syntax error while parsing value - unexpected '}'; …".
std::string json_reason(const nlohmann::json::exception& error);

}  // namespace trireme
