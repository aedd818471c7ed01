#pragma once
// Parses untrusted JSON: refuses duplicate keys and bounds the nesting, unlike the library.

#include "trireme/base/file.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace trireme {

/// Throws Error with `code`: "<what>: <reason>".
nlohmann::json parse_json(std::string_view text, const std::string& what, ExitCode code, int max_depth = 32);

/// parse_json() with the keys of objects in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what, ExitCode code,
                                          int max_depth = 32);

/// parse_json() of a file of at most `max_bytes`.
nlohmann::json read_json(const std::filesystem::path& path, ExitCode code, size_t max_bytes = 64 << 20,
                         int max_depth = 32);
/// The same; null where there is no file.
nlohmann::json read_json_if_there(const std::filesystem::path& path, ExitCode code, size_t max_bytes = 64 << 20);
/// A file of a model that holds one object. ModelError.
nlohmann::json read_json_object(const std::filesystem::path& path);

/// What the library's exceptions say, without its own codes: "line 1, column 7: unexpected '}'; expected '[', '{', or a
/// literal" from "[json.exception.parse_error.101] parse error at line 1, column 7: syntax error while parsing value -
/// unexpected '}'; …".
std::string json_reason(const nlohmann::json::exception& error);

/// The member `key`; null if it is absent or `object` is not an object.
inline nlohmann::json member(const nlohmann::json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object.at(key) : nlohmann::json();
}

// JSON of rows, with what Python's json reads and JSON does not allow: NaN, Infinity, numbers too large for a double,
// and lone surrogates. DataError with `place` for what is no JSON.

/// `other`: null, or the value with another replacement of lone surrogates.
struct PythonJson {
  nlohmann::json value, other;
};
PythonJson parse_python_json(std::string_view text, const std::string& place);
/// An object, or a list of them, in the order of its keys. NaN, Infinity and numbers too large for a double are null or
/// 0, as they stand in columns that are not read. DataError also for integers of more than 64 bits.
nlohmann::ordered_json parse_objects(std::string_view text, const std::string& place);
/// The JSON object that `text` begins with; empty where it does not, or the object does not end.
std::string_view first_object(std::string_view text);
/// A text of objects one after the other as a list of them, which `list` holds; other texts without their byte order
/// mark. Line numbers stay.
std::string_view as_list(std::string_view text, std::string& list);

}  // namespace trireme
