#include "report_line.h"

#include <algorithm>
#include <charconv>
#include <limits>

namespace trireme {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The unread rest of a line. Each function consumes what it accepts; after a refusal the line is given up.
struct FlatScanner {
  std::string_view rest;

  bool take(std::string_view text) {
    if (!rest.starts_with(text)) return false;
    rest.remove_prefix(text.size());
    return true;
  }

  /// A quoted string without escapes.
  std::optional<std::string_view> string() {
    if (!take("\"")) return std::nullopt;
    size_t size = 0;
    while (size < rest.size() && rest[size] >= ' ' && rest[size] <= '~' && rest[size] != '"' && rest[size] != '\\')
      ++size;
    const std::string_view found = rest.substr(0, size);
    rest.remove_prefix(size);
    return take("\"") ? std::optional(found) : std::nullopt;
  }

  /// from_chars reads more than JSON has: "01", "1.", ".5", "inf".
  std::optional<double> number() {
    double value = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc()) return std::nullopt;
    const std::string_view text(rest.data(), static_cast<size_t>(end - rest.data()));
    const std::string_view digits = text.substr(text[0] == '-' ? 1 : 0);
    if (digits.empty() || !is_digit(digits[0]) || (digits[0] == '0' && digits.size() > 1 && is_digit(digits[1])))
      return std::nullopt;
    if (const size_t point = digits.find('.');
        point != std::string_view::npos && (point + 1 == digits.size() || !is_digit(digits[point + 1])))
      return std::nullopt;
    rest.remove_prefix(text.size());
    return value;
  }
};

}  // namespace

std::optional<StepLine> read_step_line(std::string_view text) {
  FlatScanner scanner{text};
  if (!scanner.take(R"({"event":"train","step":)")) return std::nullopt;
  StepLine line;
  const auto step = scanner.number();
  if (!step) return std::nullopt;
  line.step = *step;
  while (scanner.take(",")) {
    const auto key = scanner.string();
    if (!key || *key == "event" || *key == "step" || !scanner.take(":")) return std::nullopt;
    std::optional<double> value;
    if (scanner.rest.starts_with('"')) {
      if (!scanner.string()) return std::nullopt;
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (!scanner.take("null")) {
      value = scanner.number();
      if (!value) return std::nullopt;
    }
    if (const auto* found = std::find(kStepKeys.begin(), kStepKeys.end(), *key); found != kStepKeys.end())
      line.values[static_cast<size_t>(found - kStepKeys.begin())] = value;
  }
  return scanner.rest == "}" ? std::optional(line) : std::nullopt;
}

}  // namespace trireme
