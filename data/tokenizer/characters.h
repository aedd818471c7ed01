#pragma once
// The character classes of Hugging Face `tokenizers`, and Unicode normalisation as it has it
// (scripts/make_tokenizer_tables.py).

#include "trireme/base/text.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

/// The low two bits of a character's flags.
enum class CharacterClass : uint8_t { kOther = 0, kLetter = 1, kNumber = 2, kSpace = 3 };  // \p{L}, \p{N}, \s
inline constexpr uint8_t kWordCharacter = 4;                                               // \w
inline constexpr uint8_t kMayCompose = 8;  // NFC may change it, or what stands before it

/// By code point, 0x110000 entries.
const uint8_t* character_flags();

inline CharacterClass class_of(uint8_t flags) { return static_cast<CharacterClass>(flags & 3); }

struct Character {
  char32_t code;
  uint32_t bytes;
};

/// The character at `at`.
inline Character character_at(std::string_view text, size_t at) {
  size_t end = at;
  const char32_t code = next_character(text, end);
  return {code, static_cast<uint32_t>(end - at)};
}
/// The character that ends before `end` > 0.
inline Character character_before(std::string_view text, size_t end) {
  return character_at(text, character_begin(text, end));
}

/// Appends the canonical decomposition of a character, or the character itself.
void append_decomposed(char32_t c, std::u32string& out);

/// Text in Unicode normalisation form C (Unicode Standard Annex #15). `text` itself, unchanged, where `changed` is
/// false: `out` is then not written.
bool normalise_nfc(std::string_view text, std::string& out);

}  // namespace trireme
