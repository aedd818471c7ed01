#include "trireme/formats/json.h"

#include "trireme/base/text.h"

#include <fmt/format.h>

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

}  // namespace trireme
