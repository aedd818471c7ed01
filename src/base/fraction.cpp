#include "trireme/base/fraction.h"

#include <charconv>
#include <cmath>

namespace trireme {

namespace {
std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}
}  // namespace

std::optional<double> parse_fraction(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return number(text);
  const auto numerator = number(text.substr(0, slash)), denominator = number(text.substr(slash + 1));
  if (!numerator || !denominator || *denominator == 0) return std::nullopt;
  return *numerator / *denominator;
}

}  // namespace trireme
