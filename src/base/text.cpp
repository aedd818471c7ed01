#include "trireme/base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace trireme {

int edit_distance(std::string_view a, std::string_view b) {
  const size_t n = b.size();
  std::vector<int> before(n + 1), previous(n + 1), current(n + 1);
  for (size_t j = 0; j <= n; ++j) previous[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (size_t j = 1; j <= n; ++j) {
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[n];
}

std::optional<std::string> nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string lowered = lower(std::string(word));
  std::optional<std::string> best;
  int best_distance = 0;
  for (const std::string& candidate : candidates) {
    // The distance is at least the difference in length: without this check a key of a megabyte would take minutes.
    const size_t longer = std::max(word.size(), candidate.size());
    const size_t shorter = std::min(word.size(), candidate.size());
    if (longer - shorter > std::max<size_t>(1, longer * 2 / 5)) continue;
    if (lower(candidate) == lowered) return candidate;
    const int distance = edit_distance(word, candidate);
    if (!best || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  const int longest = static_cast<int>(best ? std::max(word.size(), best->size()) : 0);
  if (!best || best_distance > std::max(1, longest * 2 / 5)) return std::nullopt;
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const auto nearest = nearest_word(word, candidates);
  return nearest ? fmt::format(" Did you mean '{}'?", *nearest) : "";
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::abs(bytes) >= (unit == 0 ? 1023.5 : 1023.95) && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count);
  const size_t first = digits.starts_with('-') ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

std::string counted(int64_t count, const std::string& noun, const std::string& plural) {
  return format_count(count) + " " + (count == 1 ? noun : plural.empty() ? noun + "s" : plural);
}

std::string format_short(double value) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g}{}", value, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1000);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto total = static_cast<int64_t>(std::llround(seconds));
  if (total < 3600) return fmt::format("{}m{:02}s", total / 60, total % 60);
  if (total < 86400) return fmt::format("{}h{:02}m", total / 3600, total % 3600 / 60);
  return fmt::format("{}d{:02}h", total / 86400, total % 86400 / 3600);
}

std::string format_exact(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return fmt::format("{}", value);  // fmt prints the shortest text that reads back the same
}

std::string python_number(double value) {
  const std::string text = format_exact(value);
  return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
}

namespace {

std::optional<double> parse_number(std::string_view text) {
  const auto value = parse_whole<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

}  // namespace

std::optional<double> parse_fraction(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return parse_number(text);
  const auto numerator = parse_number(text.substr(0, slash)), denominator = parse_number(text.substr(slash + 1));
  if (!numerator || !denominator || *denominator == 0) return std::nullopt;
  return *numerator / *denominator;
}

size_t character_count(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return !continues_character(c); }));
}

std::string wrap(std::string_view text, size_t width, size_t indent) {
  const std::string margin = "\n" + std::string(indent, ' ');
  std::string result;
  size_t column = indent;
  for (const std::string& word : split(text, ' ')) {
    const size_t length = character_count(word);
    if (column > indent && column + 1 + length > width) {
      result += margin;
      column = indent;
    } else if (!result.empty()) {
      result += ' ';
      ++column;
    }
    result += word;
    column += length;
  }
  return result;
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    size_t extra;
    uint32_t code;
    if (lead < 0x80) {
      ++i;
      continue;
    } else if (lead >> 5 == 0x6) {
      extra = 1;
      code = lead & 0x1F;
    } else if (lead >> 4 == 0xE) {
      extra = 2;
      code = lead & 0x0F;
    } else if (lead >> 3 == 0x1E) {
      extra = 3;
      code = lead & 0x07;
    } else {
      return i;
    }
    if (i + extra >= text.size()) return i;
    for (size_t k = 1; k <= extra; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if (next >> 6 != 0x2) return i;
      code = code << 6 | (next & 0x3F);
    }
    static constexpr uint32_t kLowest[] = {0, 0x80, 0x800, 0x10000};
    if (code < kLowest[extra] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return i;
    i += extra + 1;
  }
  return i;
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string_view::npos; begin = end + 1)
    parts.emplace_back(text.substr(begin, end - begin));
  parts.emplace_back(text.substr(begin));
  return parts;
}

std::string shell_quote(const std::string& text) {
  const auto is_safe = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) ||
           std::string_view("@%+=:,./-_").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_safe)) return text;
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "'\"'\"'" : std::string(1, c);
  return result + "'";
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

}  // namespace trireme
