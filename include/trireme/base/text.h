#pragma once
// Text for people: numbers with units, did-you-mean, lines, UTF-8 checks; fractions as people write them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// Levenshtein distance with transpositions counted as one edit.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate with the smallest edit distance to `word`, if it is small enough for a typing error.
std::optional<std::string> nearest_word(std::string_view word, const std::vector<std::string>& candidates);

/// " Did you mean 'x'?" or an empty string.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

std::string format_bytes(double bytes);   // "12.3 GiB"
std::string format_count(int64_t count);  // "6,738,415,616"
/// "1 row", "1,024 rows"; `plural` where it is not the noun with an s.
std::string counted(int64_t count, const std::string& noun, const std::string& plural = "");
std::string format_short(double value);       // "6.74G", "65.5k"
std::string format_duration(double seconds);  // "412 ms", "41.2 s", "5m07s", "5h41m", "3d02h"
/// Shortest decimal text that reads back as the same double (17 digits at most); "nan", "inf", "-inf" for the rest.
std::string format_exact(double value);

/// "1/3", "0.25", "1e-2", "2": the value as a double ("a/b": the double quotient, as Python computes it). A sign is
/// allowed. nullopt: not a number, not finite, or a denominator of 0.
std::optional<double> parse_fraction(std::string_view text);

/// The text with line breaks in place of spaces so that lines have at most `width` characters; each line after the
/// first begins with `indent` spaces, and the first line counts as indented too. Longer words stay whole.
std::string wrap(std::string_view text, size_t width, size_t indent);

/// Number of bytes before the first invalid UTF-8 (RFC 3629); text.size() if all bytes are valid.
size_t valid_utf8_prefix(std::string_view text);
inline bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace trireme
