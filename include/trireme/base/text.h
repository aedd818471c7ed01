#pragma once
// Text for people: numbers with units, did-you-mean, UTF-8 checks.

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

std::string format_bytes(double bytes);       // "12.3 GiB"
std::string format_count(int64_t count);      // "6,738,415,616"
std::string format_short(double value);       // "6.74G", "65.5k"
std::string format_duration(double seconds);  // "412 ms", "41.2 s", "5m07s", "5h41m", "3d02h"
/// Shortest decimal text that reads back as the same double (17 digits at most); "nan", "inf", "-inf" for the rest.
std::string format_exact(double value);

/// Bytes before the first that is not UTF-8 (RFC 3629); text.size() if all are.
size_t valid_utf8_prefix(std::string_view text);
inline bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace trireme
