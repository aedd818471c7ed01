#include "conf_scalar.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>

namespace trireme {

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
  const std::string plain = (negative ? "-" : "") + without_underscores(digits);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value, base);
  if (error != std::errc() || end != plain.data() + plain.size()) return std::nullopt;
  return value;
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
  double value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (error != std::errc() || end != plain.data() + plain.size()) return std::nullopt;
  return text[0] == '-' ? -value : value;
}

bool set_number(ConfNode& node, std::optional<double> value) {
  if (!value) return false;
  node.kind = ConfNode::Kind::kNumber;
  node.number = *value;
  return true;
}

bool set_integer(ConfNode& node, std::optional<int64_t> value) {
  if (!value) return false;
  node.kind = ConfNode::Kind::kInteger;
  node.integer = *value;
  return true;
}

void set_bool(ConfNode& node, bool value) {
  node.kind = ConfNode::Kind::kBool;
  node.boolean = value;
}

}  // namespace

void set_yaml_scalar(ConfNode& node, const std::string& text) {
  node.kind = ConfNode::Kind::kText;
  node.text = text;
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) {
    node.kind = ConfNode::Kind::kNull;
    node.text.clear();
    return;
  }
  if (is_one_of(text, {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})) return set_bool(node, true);
  if (is_one_of(text, {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})) return set_bool(node, false);
  const std::string_view body = magnitude(text);
  const bool negative = text[0] == '-';
  if (body.starts_with("0b") && all_of(body.substr(2), "01_") &&
      set_integer(node, integer_of(body.substr(2), negative, 2)))
    return;
  if (body.starts_with("0x") && all_of(body.substr(2), "0123456789abcdefABCDEF_") &&
      set_integer(node, integer_of(body.substr(2), negative, 16)))
    return;
  if (body.size() > 1 && body[0] == '0' && all_of(body, "01234567_") &&
      set_integer(node, integer_of(body, negative, 8)))
    return;
  if (!body.empty() && (body == "0" || (body[0] != '0' && body[0] != '_')) && all_of(body, kDigits) &&
      set_integer(node, integer_of(body, negative, 10)))
    return;
  if (is_one_of(body, {".inf", ".Inf", ".INF"})) {
    set_number(node, negative ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity());
    return;
  }
  if (is_one_of(text, {".nan", ".NaN", ".NAN"})) {
    set_number(node, std::numeric_limits<double>::quiet_NaN());
    return;
  }
  set_number(node, decimal_number(text));
}

void set_override_scalar(ConfNode& node, const std::string& text) {
  node.kind = ConfNode::Kind::kText;
  node.text = text;
  std::string lower;
  for (const char c : text) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (lower == "null") {
    node.kind = ConfNode::Kind::kNull;
    node.text.clear();
    return;
  }
  if (lower == "true" || lower == "false") return set_bool(node, lower == "true");
  const std::string_view body = magnitude(text);
  if (!body.empty() && (body == "0" || (body[0] != '0' && body[0] != '_')) && body.back() != '_' &&
      body.find("__") == std::string_view::npos && all_of(body, kDigits) &&
      set_integer(node, integer_of(body, text[0] == '-', 10)))
    return;
  const std::string_view word = std::string_view(lower).substr(text.size() - body.size());
  if (word == "inf" || word == "nan") {
    const double value =
        word == "inf" ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    set_number(node, text[0] == '-' ? -value : value);
    return;
  }
  set_number(node, decimal_number(text));
}

std::string python_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer, static_cast<size_t>(end - buffer));
  const size_t e = shortest.find('e');
  int exponent = 0;
  const std::string_view sign = shortest.substr(e + 1);
  std::from_chars(sign.data() + (sign[0] == '+' ? 1 : 0), sign.data() + sign.size(), exponent);
  // repr() writes digits where the exponent is -4 … 15.
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  char fixed[400];
  const auto fixed_end = std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed).ptr;
  const std::string result(fixed, fixed_end);
  return result.find('.') == std::string::npos ? result + ".0" : result;
}

ConfNode text_node(std::string text, const ConfPlace& place) {
  ConfNode node;
  node.kind = ConfNode::Kind::kText;
  node.text = std::move(text);
  node.place = place;
  return node;
}

ConfNode integer_node(int64_t value, const ConfPlace& place) {
  ConfNode node;
  node.kind = ConfNode::Kind::kInteger;
  node.integer = value;
  node.place = place;
  return node;
}

ConfNode number_node(double value, const ConfPlace& place) {
  ConfNode node;
  node.kind = ConfNode::Kind::kNumber;
  node.number = value;
  node.place = place;
  return node;
}

}  // namespace trireme
