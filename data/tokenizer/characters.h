#pragma once
// The character classes of Hugging Face `tokenizers`, and Unicode normalisation as it has it
// (scripts/make_tokenizer_tables.py).

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

/// The character at `at` of valid UTF-8; also safe at the first bytes of a text that ends inside a character.
inline Character character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> char32_t {
    return i < text.size() ? static_cast<char32_t>(static_cast<unsigned char>(text[i])) & 0x3F : 0;
  };
  const auto first = static_cast<char32_t>(static_cast<unsigned char>(text[at]));
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | byte(at + 1), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | byte(at + 1) << 6 | byte(at + 2), 3};
  return {(first & 0x07) << 18 | byte(at + 1) << 12 | byte(at + 2) << 6 | byte(at + 3), 4};
}
/// The character that ends before `end` > 0.
inline Character character_before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0u) == 0x80u) --at;
  return character_at(text, at);
}

/// Text in Unicode normalisation form C (Unicode Standard Annex #15). `text` itself, unchanged, where `changed` is
/// false: `out` is then not written.
bool normalise_nfc(std::string_view text, std::string& out);

}  // namespace trireme
