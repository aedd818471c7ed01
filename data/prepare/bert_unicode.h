#pragma once
// The Unicode functions of BERT's tokenizer, equal to Python's str.isspace(), str.lower(), unicodedata.category() and
// normalize("NFD"). Tables: scripts/make_unicode_tables.py.

#include <string>
#include <string_view>

namespace trireme {

/// The Unicode version of the tables ("14.0.0": Python 3.11).
std::string_view unicode_version();

bool unicode_is_dropped(char32_t c);       // U+0000, U+FFFD, Cc, Cf; not tab, newline, carriage return
bool unicode_is_space(char32_t c);         // Zs, tab, newline, carriage return
bool unicode_is_python_space(char32_t c);  // str.isspace(): where strip() and split() cut
bool unicode_is_punctuation(char32_t c);   // P*, and ASCII that is neither letter, digit, space nor control
bool unicode_is_cjk(char32_t c);           // the blocks of CJK ideographs that BERT surrounds with spaces

/// NFD of the lower case of `word`, without the nonspacing marks (category Mn).
void unicode_fold(std::u32string_view word, std::u32string& out);

}  // namespace trireme
