#include "trireme/formats/json.h"

#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <unordered_set>
#include <vector>

namespace trireme {
namespace {

/// Refuses what the library accepts. A pass of its own, because the library's callback looks at all members of an
/// object after each one that is an object or a list.
class Bounds final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Bounds(const std::string& what, ExitCode code, int max_depth, size_t max_keys)
      : what_(what), code_(code), max_depth_(max_depth), max_keys_(max_keys) {}

  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    if (keys_.back().size() == max_keys_)
      throw Error(code_, fmt::format("{}: an object of more than {} keys", what_, max_keys_));
    if (!keys_.back().insert(name).second) throw Error(code_, fmt::format("{}: key '{}' appears twice", what_, name));
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  bool enter() {
    if (keys_.size() >= static_cast<size_t>(max_depth_))
      throw Error(code_, fmt::format("{}: nested deeper than {} levels", what_, max_depth_));
    keys_.emplace_back();
    return true;
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }

  const std::string& what_;
  ExitCode code_;
  int max_depth_;
  size_t max_keys_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects and lists around the present place
};

template <class Json>
Json parse_bounded(std::string_view text, const std::string& what, ExitCode code, int max_depth) {
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)  // the library drops what follows
    throw Error(code, fmt::format("{} is not valid JSON: byte {} is NUL", what, nul));
  // The library looks through all keys of such an object for each.
  constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;
  Bounds bounds(what, code, max_depth, kOrdered ? 16'384 : std::numeric_limits<size_t>::max());
  nlohmann::json::sax_parse(text, &bounds);
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw Error(code, fmt::format("{} is not valid JSON: {}", what, json_reason(error)));
  }
}

constexpr const char* kOneObject = ": JSON lines hold one object a line, a .json file perhaps a list";

/// The surrogate (D800 to DFFF) whose escape begins at `at`; 0 if there is none.
unsigned surrogate_at(std::string_view line, size_t at) {
  if (at + 6 > line.size() || line[at] != '\\' || line[at + 1] != 'u') return 0;
  const unsigned code = parse_whole<unsigned>(line.substr(at + 2, 4), 16).value_or(0);
  return code >= 0xD800 && code <= 0xDFFF ? code : 0;
}

/// Replaces what Python's json accepts but JSON does not allow: NaN and Infinity by null, numbers too large for a
/// double by 0, and each lone surrogate by `lone` (an escape).
std::string without_python_extras(std::string_view line, const char* lone) {
  std::string result;
  bool in_string = false;
  for (size_t at = 0; at < line.size();) {
    const std::string_view rest = line.substr(at);
    size_t taken = 1;
    std::string instead;
    if (in_string && rest[0] == '\\') {
      const unsigned first = surrogate_at(line, at), second = surrogate_at(line, at + 6);
      const bool pair = first != 0 && first < 0xDC00 && second >= 0xDC00;
      taken = pair ? 12 : first != 0 ? 6 : 2;
      if (first != 0 && !pair) instead = lone;
    } else if (rest[0] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      for (const std::string_view word : {"NaN", "-Infinity", "Infinity"}) {
        if (!rest.starts_with(word)) continue;
        taken = word.size();
        instead = "null";
      }
      if (const size_t length = std::min(rest.find_first_not_of("+-.0123456789eE"), rest.size());
          instead.empty() && length > 0) {
        const std::string number(rest.substr(0, length));
        char* end = nullptr;
        if (std::isinf(std::strtod(number.c_str(), &end)) && *end == '\0') instead = "0";
        taken = length;
      }
    }
    taken = std::min(taken, rest.size());
    result += instead.empty() ? rest.substr(0, taken) : std::string_view(instead);
    at += taken;
  }
  return result;
}

/// The JSON library makes a rounded float of an integer of more than 64 bits; Python prints all its digits.
void refuse_long_integers(std::string_view text, const std::string& place) {
  bool quoted = false;
  for (size_t i = 0, digits = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\') ++i;
    const bool digit = !quoted && is_digit(text[i]);
    digits = digit ? digits + 1 : 0;
    if (digits < 19 || (i + 1 < text.size() && std::string_view("0123456789.eE").find(text[i + 1]) != text.npos))
      continue;
    const size_t begin = i + 1 - digits;
    const char before = begin > 0 ? text[begin - 1] : ' ';
    const bool fits = before == '-' ? parse_whole<int64_t>(text.substr(begin - 1, digits + 1)).has_value()
                                    : parse_whole<uint64_t>(text.substr(begin, digits)).has_value();
    if (!fits && std::string_view(".eE+").find(before) == std::string_view::npos)
      throw DataError(fmt::format("{}: the integer {}{} has more than 64 bits", place, before == '-' ? "-" : "",
                                  text.substr(begin, std::min<size_t>(digits, 80))));
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

nlohmann::json read_json_object(const std::filesystem::path& path) {
  nlohmann::json json = read_json(path, ExitCode::kModel, 16 << 20);
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
  text = text.substr(0, 300);  // it quotes what was read, such as a number of a megabyte
  for (size_t bad = valid_utf8_prefix(text); bad < text.size(); bad = valid_utf8_prefix(text))  // "last read: …"
    text.replace(bad, 1, fmt::format("<byte {:02X}>", static_cast<unsigned char>(text[bad])));
  return text;
}

PythonJson parse_python_json(std::string_view text, const std::string& place) {
  PythonJson json;
  try {
    json.value = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& reason) {
    json.value = nlohmann::json::parse(without_python_extras(text, "\\ufffd"), nullptr, /*allow_exceptions=*/false);
    if (json.value.is_discarded())
      throw DataError(fmt::format("{}: not JSON ({}){}", place, json_reason(reason), kOneObject));
    json.other = nlohmann::json::parse(without_python_extras(text, "\\ufffe"));
  }
  return json;
}

nlohmann::ordered_json parse_objects(std::string_view text, const std::string& place) {
  constexpr int kDepth = 40;
  refuse_long_integers(text, place);
  try {
    return parse_ordered_json(text, place, ExitCode::kData, kDepth);
  } catch (const Error& error) {
    const char* hint = nlohmann::json::accept(text) ? "" : kOneObject;
    const std::string without = without_python_extras(text, "\\ufffd");
    if (without == text || without != without_python_extras(text, "\\ufffe"))  // or a lone surrogate
      throw DataError(fmt::format("{}{}", error.what(), hint));
    return parse_ordered_json(without, place, ExitCode::kData, kDepth);
  }
}

std::string_view first_object(std::string_view text) {
  if (!text.starts_with('{')) return {};
  bool quoted = false;
  for (size_t i = 0, depth = 0; i < text.size(); ++i) {
    if (text[i] == '"')
      quoted = !quoted;
    else if (quoted)
      i += text[i] == '\\' ? 1 : 0;
    else if (text[i] == '{')
      ++depth;
    else if (text[i] == '}' && --depth == 0)
      return text.substr(0, i + 1);
  }
  return {};
}

std::string_view as_list(std::string_view text, std::string& list) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  for (std::string_view rest = text;;) {
    const size_t begin = std::min(rest.find_first_not_of(" \t\r\n"), rest.size());
    const std::string_view object = first_object(rest.substr(begin));
    if (object.empty()) return begin < rest.size() || list.empty() ? text : list += ']';
    list += list.empty() ? '[' : ',';
    list += rest.substr(0, begin + object.size());
    rest.remove_prefix(begin + object.size());
  }
}

}  // namespace trireme
