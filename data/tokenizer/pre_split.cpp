#include "data/tokenizer/pre_split.h"

namespace trireme {
namespace {

unsigned char byte_at(std::string_view text, size_t at) { return static_cast<unsigned char>(text[at]); }

struct ClassedCharacter {
  CharacterClass kind;
  uint32_t bytes;
  char32_t code;
};

ClassedCharacter classed(std::string_view text, size_t at, const uint8_t* flags) {
  const Character c = character_at(text, at);
  return {class_of(flags[c.code]), c.bytes, c.code};
}

/// The end of the run of characters of one class.
size_t run_end(std::string_view text, size_t at, CharacterClass kind, const uint8_t* flags) {
  while (at < text.size()) {
    if (const unsigned char byte = byte_at(text, at); byte < 0x80) {
      if (class_of(flags[byte]) != kind) break;
      ++at;
    } else {
      const Character c = character_at(text, at);
      if (class_of(flags[c.code]) != kind) break;
      at += c.bytes;
    }
  }
  return at;
}

/// The end of white space that begins at `at`: \s+(?!\S)|\s+. All of it at the end of the text or where it is one
/// character, else all but the last character.
size_t space_end(std::string_view text, size_t at, size_t end) {
  if (end == text.size()) return end;
  const size_t last = end - character_before(text, end).bytes;
  return last > at ? last : end;
}

/// The end of an English contraction, 's|'t|'re|'ve|'m|'ll|'d, at an apostrophe; `at` if there is none.
template <bool kAnyCase>
size_t contraction_end(std::string_view text, size_t at) {
  const auto letter = [&](size_t i) -> char {
    if (i >= text.size()) return 0;
    const char c = text[i];
    return kAnyCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  const char first = letter(at + 1), second = letter(at + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
    return at + 3;
  // U+017F (long s) is an s where case does not count.
  if (kAnyCase && text.substr(at + 1).starts_with("\xC5\xBF")) return at + 3;
  return at;
}

bool line_end(char32_t c) { return c == '\r' || c == '\n'; }

size_t gpt2_word_end(std::string_view text, size_t at, const uint8_t* flags) {
  const ClassedCharacter first = classed(text, at, flags);
  if (first.code == '\'')
    if (const size_t end = contraction_end<false>(text, at); end > at) return end;
  if (first.code == ' ' && at + 1 < text.size()) {
    const ClassedCharacter next = classed(text, at + 1, flags);
    if (next.kind != CharacterClass::kSpace) return run_end(text, at + 1 + next.bytes, next.kind, flags);
  }
  const size_t end = run_end(text, at + first.bytes, first.kind, flags);
  return first.kind == CharacterClass::kSpace ? space_end(text, at, end) : end;
}

/// Llama 3 has numbers of up to three digits, Qwen2 of one.
template <int kDigits>
size_t llama3_word_end(std::string_view text, size_t at, const uint8_t* flags) {
  const ClassedCharacter first = classed(text, at, flags);
  if (first.kind == CharacterClass::kLetter) return run_end(text, at + first.bytes, CharacterClass::kLetter, flags);
  if (first.code == '\'')
    if (const size_t end = contraction_end<true>(text, at); end > at) return end;
  const size_t after = at + first.bytes;
  if (first.kind == CharacterClass::kNumber) {
    size_t end = after;
    for (int i = 1; i < kDigits && end < text.size(); ++i) {
      const ClassedCharacter next = classed(text, end, flags);
      if (next.kind != CharacterClass::kNumber) break;
      end += next.bytes;
    }
    return end;
  }
  const ClassedCharacter next =
      after < text.size() ? classed(text, after, flags) : ClassedCharacter{CharacterClass::kSpace, 0, 0};
  if (next.kind == CharacterClass::kLetter && !line_end(first.code))
    return run_end(text, after + next.bytes, CharacterClass::kLetter, flags);
  const bool spaced = first.code == ' ' && next.kind == CharacterClass::kOther;
  if (spaced || first.kind == CharacterClass::kOther) {
    size_t end = run_end(text, after + (spaced ? next.bytes : 0), CharacterClass::kOther, flags);
    while (end < text.size() && line_end(byte_at(text, end))) ++end;
    return end;
  }
  // White space: through the last line end if it holds one.
  const size_t end = run_end(text, after, CharacterClass::kSpace, flags);
  for (size_t i = end; i > at; --i)
    if (line_end(byte_at(text, i - 1))) return i;
  return space_end(text, at, end);
}

/// A number, of one character unless `kRuns`, or what lies before the next.
template <bool kRuns>
size_t number_end(std::string_view text, size_t at, const uint8_t* flags) {
  const ClassedCharacter first = classed(text, at, flags);
  size_t end = at + first.bytes;
  if (first.kind == CharacterClass::kNumber) return kRuns ? run_end(text, end, first.kind, flags) : end;
  for (ClassedCharacter next; end < text.size(); end += next.bytes)
    if ((next = classed(text, end, flags)).kind == CharacterClass::kNumber) break;
  return end;
}

}  // namespace

WordEnd known_pattern(const PreSplitStep& step) {
  if (step.literal) return nullptr;
  if (!step.removed && step.pattern == kDigitPattern) return number_end<false>;
  if (!step.removed && step.pattern == kDigitsPattern) return number_end<true>;
  // These patterns match every character: nothing lies between the matches.
  if (step.removed && !step.invert) return nullptr;
  if (step.pattern == kGpt2Pattern) return gpt2_word_end;
  if (step.pattern == kLlama3Pattern) return llama3_word_end<3>;
  return step.pattern == kQwen2Pattern ? llama3_word_end<1> : nullptr;
}

PreSplitter::PreSplitter(const std::vector<PreSplitStep>& steps, const std::filesystem::path& path)
    : steps_(steps), flags_(character_flags()) {
  // A last ByteLevel that neither cuts nor adds a space does nothing here.
  while (steps_.size() > 1 && steps_.back().pattern.empty() && !steps_.back().prefix_space) steps_.pop_back();
  if (steps_.size() == 1) known_ = known_pattern(steps_[0]);
  for (const PreSplitStep& step : steps_)
    patterns_.push_back(step.pattern.empty() || known_pattern(step) != nullptr
                            ? nullptr
                            : std::make_unique<Pattern>(step.pattern, step.literal, path));
}

std::vector<std::string_view> PreSplitter::general(std::string_view text, std::deque<std::string>& spaced) const {
  std::vector<std::string_view> pieces = {text}, next;
  for (size_t i = 0; i < steps_.size(); ++i, pieces.swap(next)) {
    next.clear();
    const PreSplitStep& step = steps_[i];
    const WordEnd known = known_pattern(step);
    for (std::string_view piece : pieces) {
      if (step.prefix_space && !piece.starts_with(' ')) piece = spaced.emplace_back(" " + std::string(piece));
      const auto add = [&](size_t begin, size_t end) {
        if (end > begin) next.push_back(piece.substr(begin, end - begin));
      };
      size_t done = 0;
      if (step.pattern.empty()) {
        add(0, piece.size());
      } else if (known != nullptr) {
        for (size_t end; done < piece.size(); done = end) {
          end = known(piece, done, flags_);
          add(done, end);
        }
      } else {
        patterns_[i]->for_each_match(piece, [&](size_t begin, size_t end) {
          if (!step.removed || !step.invert) add(done, begin);
          if (!step.removed || step.invert) add(begin, end);
          done = end;
        });
        if (!step.removed || !step.invert) add(done, piece.size());
      }
    }
  }
  return pieces;
}

}  // namespace trireme
