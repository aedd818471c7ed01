#include "data/prepare/bert_unicode.h"

#include "data/tokenizer/characters.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

namespace trireme {
namespace {

#include "data/prepare/bert_unicode_tables.inc"

enum Flag : uint16_t {
  kDropped = 1,
  kSpace = 2,
  kPythonSpace = 4,
  kPunctuation = 8,
  kNonspacing = 16,
  kReordered = 32,  // combining class other than 0
  kCased = 64,
  kIgnorable = 128,  // Case_Ignorable
  kMapped = 256,     // its lower case's NFD is another text
};

constexpr size_t kCodePoints = 0x110000;
constexpr char32_t kSigma = 0x3A3, kSmallSigma = 0x3C3, kFinalSigma = 0x3C2;

/// The generated tables, expanded for direct access.
struct Tables {
  std::vector<uint16_t> flags = std::vector<uint16_t>(kCodePoints);
  std::vector<uint16_t> mapping = std::vector<uint16_t>(kCodePoints);  // index in kMappings of the count; 0: none
  Tables() {
    for (size_t i = 0; i < std::size(kFlagRanges); i += 3)
      std::fill_n(flags.begin() + kFlagRanges[i], kFlagRanges[i + 1], static_cast<uint16_t>(kFlagRanges[i + 2]));
    static_assert(std::size(kMappings) < 65536);
    for (size_t i = 0; i < std::size(kMappings); i += 2 + kMappings[i + 1])
      mapping[kMappings[i]] = static_cast<uint16_t>(i + 1);
  }
};

const Tables& tables() {
  static const Tables loaded;
  return loaded;
}

bool has(char32_t c, unsigned flag) { return (tables().flags[c] & flag) != 0; }

/// Unicode's Final_Sigma: a cased letter before and none after, case-ignorable characters skipped.
bool is_final_sigma(std::u32string_view word, size_t at) {
  const auto letter = [&](auto first, auto last) {
    const auto found = std::find_if(first, last, [](char32_t c) { return !has(c, kIgnorable); });
    return found != last && has(*found, kCased);
  };
  const auto before = std::make_reverse_iterator(word.begin() + static_cast<ptrdiff_t>(at));
  return letter(before, word.rend()) && !letter(word.begin() + static_cast<ptrdiff_t>(at) + 1, word.end());
}

void append_folded(char32_t c, std::u32string& out) {
  if (!has(c, kMapped)) {
    out += c;
  } else if (const uint16_t at = tables().mapping[c]; at != 0) {
    out.append(kMappings + at + 1, kMappings + at + 1 + kMappings[at]);
  } else {
    append_decomposed(c, out);
  }
}

uint32_t combining_class(char32_t c) {
  for (size_t i = 0; i < std::size(kCombiningClasses); i += 2)
    if (kCombiningClasses[i] == c) return kCombiningClasses[i + 1];
  return 0;
}

/// Drops nonspacing marks, and sorts the other combining characters between two starters by combining class.
void order_and_strip(std::u32string& text) {
  size_t kept = 0, run = 0;  // run: start of the characters after the last starter
  for (const char32_t c : text) {
    const bool reordered = has(c, kReordered);
    if (!has(c, kNonspacing)) {
      text[kept++] = c;
      if (reordered) {
        for (size_t i = kept - 1; i > run && combining_class(text[i - 1]) > combining_class(c); --i)
          std::swap(text[i - 1], text[i]);
      }
    }
    if (!reordered) run = kept;
  }
  text.resize(kept);
}

}  // namespace

std::string_view unicode_version() { return kTableVersion; }
bool unicode_is_dropped(char32_t c) { return has(c, kDropped); }
bool unicode_is_space(char32_t c) { return has(c, kSpace); }
bool unicode_is_python_space(char32_t c) { return has(c, kPythonSpace); }
bool unicode_is_punctuation(char32_t c) { return has(c, kPunctuation); }

bool unicode_is_cjk(char32_t c) {
  if (c < 0x3400) return false;
  constexpr std::array<std::array<char32_t, 2>, 8> kBlocks = {{{0x4E00, 0x9FFF},
                                                               {0x3400, 0x4DBF},
                                                               {0x20000, 0x2A6DF},
                                                               {0x2A700, 0x2B73F},
                                                               {0x2B740, 0x2B81F},
                                                               {0x2B820, 0x2CEAF},
                                                               {0xF900, 0xFAFF},
                                                               {0x2F800, 0x2FA1F}}};
  return std::any_of(kBlocks.begin(), kBlocks.end(), [c](const auto& block) { return c >= block[0] && c <= block[1]; });
}

void unicode_fold(std::u32string_view word, std::u32string& out) {
  out.clear();
  for (size_t i = 0; i < word.size(); ++i) {
    if (word[i] == kSigma)
      out.push_back(is_final_sigma(word, i) ? kFinalSigma : kSmallSigma);
    else
      append_folded(word[i], out);
  }
  order_and_strip(out);
}

}  // namespace trireme
