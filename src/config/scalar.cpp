#include "scalar.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace trireme {

namespace {

const std::string kNoHint = " ";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

size_t skip_sign(std::string_view text) { return !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0; }

bool has_leading_zero(std::string_view text) {
  const size_t first = skip_sign(text);
  return text.size() > first + 1 && text[first] == '0' && is_digit(text[first + 1]);
}

bool looks_like_integer(std::string_view text) {
  const size_t first = skip_sign(text);
  return text.size() > first && std::all_of(text.begin() + static_cast<long>(first), text.end(), is_digit);
}

bool looks_like_number(std::string_view text) {
  size_t i = skip_sign(text), digits = 0;
  const auto eat_digits = [&] {
    for (; i < text.size() && is_digit(text[i]); ++i) ++digits;
  };
  eat_digits();
  if (i < text.size() && text[i] == '.') {
    ++i;
    eat_digits();
  }
  if (digits == 0) return false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    i += 1 + skip_sign(text.substr(i + 1));
    digits = 0;
    eat_digits();
    if (digits == 0) return false;
  }
  return i == text.size();
}

template <class Value>
std::optional<Value> convert(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  Value value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string hint(const std::string& text) { return fmt::format(" Did you mean '{}'?", text); }

// The integer that somebody who wrote `text` will have meant.
std::string integer_hint(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
  text.erase(std::remove(text.begin(), text.end(), ','), text.end());
  if (!looks_like_number(text)) return kNoHint;
  const auto value = convert<double>(text);
  if (!value || std::abs(*value) > 9007199254740992.0 || *value != std::floor(*value)) return kNoHint;
  return hint(fmt::format("{:.0f}", *value));
}

}  // namespace

Plain plain_type(const YamlNode& node) {
  const std::string& text = node.text;
  if (node.quoted) return Plain::kString;
  for (const char* word : {"true", "True", "TRUE", "false", "False", "FALSE"})
    if (text == word) return Plain::kBool;
  for (const char* word : {"null", "Null", "NULL", "~", ""})
    if (text == word) return Plain::kNull;
  if (looks_like_integer(text)) return Plain::kInteger;
  if (looks_like_number(text)) return Plain::kNumber;
  return Plain::kString;
}

std::string read_integer(const YamlNode& node, int64_t& value) {
  if (node.kind != YamlNode::Kind::kScalar) return kNoHint;
  const std::string& text = node.text;
  if (node.quoted) return integer_hint(text) != kNoHint ? " Leave the quotes out." : kNoHint;
  if (!looks_like_integer(text)) return integer_hint(text);
  if (has_leading_zero(text)) return " Leave the leading zero out.";
  const auto converted = convert<int64_t>(text);
  if (!converted) return kNoHint;
  value = *converted;
  return "";
}

std::string read_number(const YamlNode& node, double& value) {
  if (node.kind != YamlNode::Kind::kScalar) return kNoHint;
  const std::string& text = node.text;
  if (!looks_like_number(text)) return kNoHint;
  if (node.quoted) return " Leave the quotes out.";
  if (has_leading_zero(text)) return " Leave the leading zero out.";
  const auto converted = convert<double>(text);
  if (!converted) return " A double cannot hold that.";
  value = *converted;
  return "";
}

std::string read_bool(const YamlNode& node, bool& value) {
  if (node.kind != YamlNode::Kind::kScalar) return kNoHint;
  std::string text = node.text;
  if (!node.quoted && (text == "true" || text == "false")) {
    value = text == "true";
    return "";
  }
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  for (const char* yes : {"true", "yes", "on", "y", "1"})
    if (text == yes) return hint("true");
  for (const char* no : {"false", "no", "off", "n", "0"})
    if (text == no) return hint("false");
  return kNoHint;
}

std::string node_text(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return node.empty ? "empty" : "null";
    case YamlNode::Kind::kList: return "a list";
    case YamlNode::Kind::kMap: return "a mapping";
    case YamlNode::Kind::kScalar: break;
  }
  return node.quoted ? fmt::format("\"{}\"", shown(node.text)) : fmt::format("'{}'", shown(node.text));
}

}  // namespace trireme
