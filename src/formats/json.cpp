#include "trireme/formats/json.h"

#include "trireme/base/text.h"

#include <fmt/format.h>

#include <set>
#include <vector>

namespace trireme {
namespace {

template <class Json>
Json parse_bounded(std::string_view text, const std::string& what, ExitCode code, int max_depth) {
  std::vector<std::set<std::string>> keys;
  std::string problem;
  const auto watch = [&](int depth, typename Json::parse_event_t event, Json& value) {
    using Event = typename Json::parse_event_t;
    if (depth > max_depth) throw Error(code, fmt::format("{}: nested deeper than {} levels", what, max_depth));
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.template get<std::string>()).second)
      throw Error(code, fmt::format("{}: key '{}' appears twice", what, value.template get<std::string>()));
    return true;
  };
  // The library's destructor and callbacks recurse; counting brackets first bounds their depth.
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > max_depth) throw Error(code, fmt::format("{}: nested deeper than {} levels", what, max_depth));
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == '\0') {  // the library stops there and drops what follows
      throw Error(code, fmt::format("{} is not valid JSON: byte {} is NUL", what, i));
    }
  }
  try {
    return Json::parse(text, watch);
  } catch (const nlohmann::json::exception& error) {
    throw Error(code, fmt::format("{} is not valid JSON: {}", what, json_reason(error)));
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& what, ExitCode code, int max_depth) {
  return parse_bounded<nlohmann::json>(text, what, code, max_depth);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what, ExitCode code,
                                          int max_depth) {
  return parse_bounded<nlohmann::ordered_json>(text, what, code, max_depth);
}

nlohmann::json read_json(const std::filesystem::path& path, ExitCode code, size_t max_bytes, int max_depth) {
  return parse_json(read_text_file(path, code, max_bytes), path.string(), code, max_depth);
}

nlohmann::json read_json_if_there(const std::filesystem::path& path, ExitCode code, size_t max_bytes) {
  return std::filesystem::is_regular_file(path) ? read_json(path, code, max_bytes) : nlohmann::json();
}

nlohmann::json read_json_object(const std::filesystem::path& path, size_t max_bytes) {
  nlohmann::json json = read_json(path, ExitCode::kModel, max_bytes);
  if (!json.is_object()) throw ModelError(fmt::format("{} is not a JSON object", path.string()));
  return json;
}

std::string json_reason(const nlohmann::json::exception& error) {
  std::string text = error.what();
  if (const size_t end = text.find("] "); text.starts_with("[json.") && end != std::string::npos)
    text.erase(0, end + 2);
  if (const std::string head = "parse error at "; text.starts_with(head)) text.erase(0, head.size());
  if (const size_t begin = text.find("syntax error while parsing "); begin != std::string::npos)
    if (const size_t dash = text.find(" - ", begin); dash != std::string::npos) text.erase(begin, dash + 3 - begin);
  for (size_t bad = valid_utf8_prefix(text); bad < text.size(); bad = valid_utf8_prefix(text))  // "last read: …"
    text.replace(bad, 1, fmt::format("<byte {:02X}>", static_cast<unsigned char>(text[bad])));
  return text;
}

}  // namespace trireme
