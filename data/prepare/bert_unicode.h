#pragma once
// The Unicode functions of BERT's tokenizer, equal to Python's str.isspace(), str.lower(), unicodedata.category() and
// normalize("NFD"). Tables: scripts/make_unicode_tables.py.

#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme {

/// The Unicode version of the tables ("14.0.0": Python 3.11).
std::string_view unicode_version();

bool unicode_is_dropped(char32_t c);       // U+0000, U+FFFD, Cc, Cf; not tab, newline, carriage return
bool unicode_is_space(char32_t c);         // Zs, tab, newline, carriage return
bool unicode_is_python_space(char32_t c);  // str.isspace(): where strip() and split() cut
bool unicode_is_punctuation(char32_t c);   // P*, and ASCII that is neither letter, digit, space nor control
bool unicode_is_cjk(char32_t c);           // the blocks of CJK ideographs that BERT surrounds with spaces

/// NFD of the lower case of `word`, without the nonspacing marks (category Mn).
void unicode_fold(std::u32string_view word, std::vector<char32_t>& out);

/// The code point at text[at], which is valid UTF-8; advances `at`.
inline char32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t first = byte(at);
  if (first < 0x80) return at += 1, first;
  const auto tail = [&](size_t i) { return byte(at + i) & 0x3F; };
  char32_t c;
  if (first < 0xE0) return c = (first & 0x1F) << 6 | tail(1), at += 2, c;
  if (first < 0xF0) return c = (first & 0x0F) << 12 | tail(1) << 6 | tail(2), at += 3, c;
  return c = (first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), at += 4, c;
}

template <class String>
void append_utf8(String& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  if (c < 0x10000) return put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
}

}  // namespace trireme
