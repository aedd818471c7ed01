#include "trireme/compose/compose.h"

#include "conf_parts.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>

namespace trireme {

std::string ConfPlace::text() const {
  const std::string name = source ? *source : "";
  return line == 0 ? fmt::format("override '{}'", name) : fmt::format("{}:{}:{}", name, line, column);
}

const ConfNode* ConfNode::find(std::string_view key) const { return const_cast<ConfNode*>(this)->find(key); }

ConfNode* ConfNode::find(std::string_view key) {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const ConfEntry& entry) { return entry.key == key; });
  return found == entries.end() ? nullptr : &found->value;
}

ConfNode& ConfNode::at_or_add(const std::string& key) {
  if (kind != Kind::kMap) *this = ConfNode(Kind::kMap, place);
  if (ConfNode* known = find(key)) return *known;
  entries.push_back({key, place, {}});
  return entries.back().value;
}

void ConfNode::erase(std::string_view key) {
  std::erase_if(entries, [&](const ConfEntry& entry) { return entry.key == key; });
}

std::vector<std::string> ConfNode::keys() const {
  std::vector<std::string> names;
  for (const ConfEntry& entry : entries) names.push_back(entry.key);
  return names;
}

std::string ConfNode::str() const {
  const auto quoted = [](const ConfNode& node) {
    return node.is(Kind::kText) ? fmt::format("'{}'", node.text) : node.str();
  };
  switch (kind) {
    case Kind::kNull: return "None";
    case Kind::kBool: return boolean ? "True" : "False";
    case Kind::kInteger: return std::to_string(integer);
    case Kind::kNumber: return python_number(number);
    case Kind::kText: return text;
    case Kind::kList: {
      std::vector<std::string> parts;
      for (const ConfNode& item : items) parts.push_back(quoted(item));
      return fmt::format("[{}]", join(parts, ", "));
    }
    case Kind::kMap: break;
  }
  std::vector<std::string> parts;
  for (const ConfEntry& entry : entries) parts.push_back(fmt::format("'{}': {}", entry.key, quoted(entry.value)));
  return fmt::format("{{{}}}", join(parts, ", "));
}

bool is_too_deep(std::string_view keys) { return std::count(keys.begin(), keys.end(), '.') > 1000; }

void ConfProblems::add(const std::string& line) {
  if (std::find(lines_.begin(), lines_.end(), line) == lines_.end()) lines_.push_back(line);
}

void ConfProblems::throw_if_any(const std::string& what) const {
  if (lines_.empty()) return;
  throw ConfigError(fmt::format("{}\n{} has {}: correct {} and run again", join(lines_, "\n"), what,
                                lines_.size() == 1 ? "one problem" : fmt::format("{} problems", lines_.size()),
                                lines_.size() == 1 ? "it" : "them"));
}

namespace {

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool all_of(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

std::string without_underscores(std::string_view text) {
  std::string result(text);
  std::erase(result, '_');
  return result;
}

std::optional<int64_t> integer_of(std::string_view digits, bool negative, int base) {
  return parse_whole<int64_t>((negative ? "-" : "") + without_underscores(digits), base);
}

/// Text without its sign.
std::string_view magnitude(std::string_view text) {
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) text.remove_prefix(1);
  return text;
}

constexpr std::string_view kDigits = "0123456789_";

/// [0-9][0-9_]*.[0-9_]*(e[-+]?[0-9]+)? and its forms without dot or leading digits.
std::optional<double> decimal_number(std::string_view text) {
  const std::string_view body = magnitude(text);
  const size_t exponent = body.find_first_of("eE");
  const std::string_view mantissa = body.substr(0, exponent);
  const size_t dot = mantissa.find('.');
  if (exponent == std::string_view::npos && dot == std::string_view::npos) return std::nullopt;
  const std::string_view whole = mantissa.substr(0, dot),
                         part = dot == std::string_view::npos ? "" : mantissa.substr(dot + 1);
  if (whole.empty() && part.empty()) return std::nullopt;
  if (!whole.empty() && (!all_of(whole, kDigits) || whole[0] == '_')) return std::nullopt;
  if (!part.empty() && !all_of(part, kDigits)) return std::nullopt;
  if (exponent != std::string_view::npos && !all_of(magnitude(body.substr(exponent + 1)), "0123456789"))
    return std::nullopt;
  std::string plain = without_underscores(body);
  if (const size_t sign = plain.find("e+"); sign != std::string::npos) plain.erase(sign + 1, 1);
  if (const size_t sign = plain.find("E+"); sign != std::string::npos) plain.erase(sign + 1, 1);
  const auto value = parse_whole<double>(plain);
  return value && text[0] == '-' ? -*value : value;
}

bool is_decimal(std::string_view body) {
  return !body.empty() && (body == "0" || (body[0] != '0' && body[0] != '_')) && all_of(body, kDigits);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

ConfNode yaml_scalar(const std::string& text, const ConfPlace& place) {
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return ConfNode(ConfNode::Kind::kNull, place);
  if (is_one_of(text, {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})) return ConfNode(true, place);
  if (is_one_of(text, {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"}))
    return ConfNode(false, place);
  const std::string_view body = magnitude(text);
  const bool negative = text[0] == '-';
  std::optional<int64_t> integer;
  if (body.starts_with("0b") && all_of(body.substr(2), "01_")) integer = integer_of(body.substr(2), negative, 2);
  if (body.starts_with("0x") && all_of(body.substr(2), "0123456789abcdefABCDEF_"))
    integer = integer_of(body.substr(2), negative, 16);
  if (body.size() > 1 && body[0] == '0' && all_of(body, "01234567_")) integer = integer_of(body, negative, 8);
  if (is_decimal(body)) integer = integer_of(body, negative, 10);
  if (integer) return ConfNode(*integer, place);
  if (is_one_of(body, {".inf", ".Inf", ".INF"})) return ConfNode(negative ? -kInfinity : kInfinity, place);
  if (is_one_of(text, {".nan", ".NaN", ".NAN"})) return ConfNode(kNan, place);
  if (const auto number = decimal_number(text)) return ConfNode(*number, place);
  return ConfNode(text, place);
}

ConfNode override_scalar(const std::string& text, const ConfPlace& place) {
  const std::string lower = trireme::lower(text);
  if (lower == "null") return ConfNode(ConfNode::Kind::kNull, place);
  if (lower == "true" || lower == "false") return ConfNode(lower == "true", place);
  const std::string_view body = magnitude(text);
  if (is_decimal(body) && body.back() != '_' && body.find("__") == std::string_view::npos)
    if (const auto integer = integer_of(body, text[0] == '-', 10)) return ConfNode(*integer, place);
  const std::string_view word = std::string_view(lower).substr(text.size() - body.size());
  if (word == "inf") return ConfNode(text[0] == '-' ? -kInfinity : kInfinity, place);
  if (word == "nan") return ConfNode(text[0] == '-' ? -kNan : kNan, place);
  if (const auto number = decimal_number(text)) return ConfNode(*number, place);
  return ConfNode(text, place);
}

}  // namespace trireme
