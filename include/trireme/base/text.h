#pragma once
// Text for people: numbers with units, did-you-mean, lines, UTF-8 checks; fractions as people write them.

#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace trireme {

/// Levenshtein distance with transpositions counted as one edit.
int edit_distance(std::string_view a, std::string_view b);

/// The candidate with the smallest edit distance to `word`, if it is small enough for a typing error.
std::optional<std::string> nearest_word(std::string_view word, const std::vector<std::string>& candidates);

/// " Did you mean 'x'?" or an empty string.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

std::string shape_text(const std::vector<int64_t>& shape);  // "[4096, 11008]"
std::string format_bytes(double bytes);                     // "12.3 GiB"
std::string format_count(int64_t count);                    // "6,738,415,616"
/// "1 row", "1,024 rows"; `plural` where it is not the noun with an s.
std::string counted(int64_t count, const std::string& noun, const std::string& plural = "");
// Of any integer.
std::string format_bytes(std::integral auto bytes) { return format_bytes(static_cast<double>(bytes)); }
std::string format_count(std::integral auto count) { return format_count(static_cast<int64_t>(count)); }
std::string counted(std::integral auto count, const std::string& noun, const std::string& plural = "") {
  return counted(static_cast<int64_t>(count), noun, plural);
}
std::string format_short(double value);       // "6.74G", "65.5k"
std::string format_duration(double seconds);  // "412 ms", "41.2 s", "5m07s", "5h41m", "3d02h"
/// Shortest decimal text that reads back as the same double (17 digits at most); "nan", "inf", "-inf" for the rest.
std::string format_exact(double value);
/// A float as Python's repr() writes it.
std::string python_number(double value);

/// The whole text as a number in the form of std::from_chars; nullopt for any other, and for what the type cannot hold.
template <class Number, class... Base>
std::optional<Number> parse_whole(std::string_view text, Base... base) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// "1/3", "0.25", "1e-2", "2": the value as a double ("a/b": the double quotient, as Python computes it). A sign is
/// allowed. nullopt: not a number, not finite, or a denominator of 0.
std::optional<double> parse_fraction(std::string_view text);

/// The text with line breaks in place of spaces so that lines have at most `width` characters; each line after the
/// first begins with `indent` spaces, and the first line counts as indented too. Longer words stay whole.
std::string wrap(std::string_view text, size_t width, size_t indent);

/// Number of bytes before the first invalid UTF-8 (RFC 3629); text.size() if all bytes are valid.
size_t valid_utf8_prefix(std::string_view text);
inline bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

// Characters (code points) of valid UTF-8.

/// Whether the byte continues a character.
inline bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0u) == 0x80u; }
size_t character_count(std::string_view text);
/// The character at text[at]; advances `at`. Also safe at the first bytes of a text that ends inside a character.
inline char32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) & char32_t{0x3F} : 0;
  };
  const size_t begin = at;
  const auto end = [&](size_t length) { at = begin + length < text.size() ? begin + length : text.size(); };
  const char32_t first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return end(1), first;
  if (first < 0xE0) return end(2), (first & 0x1F) << 6 | byte(begin + 1);
  if (first < 0xF0) return end(3), (first & 0x0F) << 12 | byte(begin + 1) << 6 | byte(begin + 2);
  return end(4), (first & 0x07) << 18 | byte(begin + 1) << 12 | byte(begin + 2) << 6 | byte(begin + 3);
}
/// Where the character that ends before `end` > 0 begins.
inline size_t character_begin(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && continues_character(text[at])) --at;
  return at;
}
template <class String>
void append_utf8(String& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  if (c < 0x10000) return put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
}

/// As Python's shlex.quote().
std::string shell_quote(const std::string& text);
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }  // of ASCII
/// ASCII's letters in lower case.
std::string lower(std::string text);
/// The keys of a map, in its order.
template <class Map>
std::vector<std::string> keys_of(const Map& map) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : map) keys.push_back(key);
  return keys;
}
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace trireme
