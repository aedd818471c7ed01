#include "data/tokenizer/pattern.h"

#include "data/tokenizer/characters.h"
#include "trireme/base/error.h"

#include <fmt/format.h>

#include <algorithm>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace trireme {
namespace {

constexpr size_t kLongestPattern = 1 << 16;
constexpr size_t kSmallStack = size_t{32} << 10, kLargeStack = size_t{8} << 20;  // of the compiled pattern, in bytes
constexpr std::string_view kSpaces =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

/// Oniguruma's \\w as the inside of a set: that of `tokenizers`' added tokens without the joiners and, unless the
/// pattern itself has it in a set, with the fractions and small digits of Latin-1.
const std::string& word_set(bool in_set = false) {
  const auto make = [](bool latin) {
    const uint8_t* flags = character_flags();
    const auto is_word = [&](char32_t c) {
      if (c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0xBC && c <= 0xBE)) return latin;
      return c < 0x110000 && c != 0x200C && c != 0x200D && (flags[c] & kWordCharacter) != 0;
    };
    std::string made;
    for (char32_t begin = 0; begin < 0x110000; ++begin) {
      if (!is_word(begin)) continue;
      char32_t end = begin;
      while (is_word(end + 1)) ++end;
      made += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
      begin = end;
    }
    return made;
  };
  static const std::string sets[] = {make(true), make(false)};
  return sets[in_set ? 1 : 0];
}

/// The translation of an escape outside a set; empty: itself.
std::string translated_escape(char c) {
  const std::string& word = word_set();
  switch (c) {
    case 's': return fmt::format("[{}]", kSpaces);
    case 'S': return fmt::format("[^{}]", kSpaces);
    case 'w': return fmt::format("[{}]", word);
    case 'W': return fmt::format("[^{}]", word);
    case 'b': return fmt::format("(?(?<=[{0}])(?![{0}])|(?=[{0}]))", word);
    case 'B': return fmt::format("(?(?<=[{0}])(?=[{0}])|(?![{0}]))", word);
    default: return "";
  }
}

/// Of "…{1,3", before the closing brace.
bool ends_with_count(std::string_view pattern) {
  const size_t open = pattern.find_last_not_of("0123456789,");
  return open != std::string_view::npos && open + 1 < pattern.size() && pattern[open] == '{';
}

bool compiles(const std::string& pattern) {
  int error = 0;
  size_t place = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<const unsigned char*>(pattern.data()), pattern.size(), PCRE2_UTF,
                                   &error, &place, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

/// The inside of \\p{…}: a script is the script itself (PCRE2's is its extensions). Other properties than general
/// categories change with the version of Unicode: empty.
std::string translated_property(std::string_view name) {
  const std::string_view sign = name.starts_with('^') ? "^" : "";
  name.remove_prefix(sign.size());
  if (name.size() <= 2 || name == "Any") return fmt::format("{}{}", sign, name);
  const std::string script = fmt::format("{}sc:{}", sign, name);
  return compiles(fmt::format("\\p{{{}}}", script)) ? script : "";
}

/// Whether a character, or two, have a case fold of another length, which Oniguruma's (?i) follows and PCRE2's does
/// not.
bool folds_to_several(std::string_view text) {
  for (const std::string_view one : {"ß", "ẞ", "İ", "ŉ", "ǰ", "ΐ", "ΰ", "և", "ﬀ", "ﬁ", "ﬂ", "ﬃ", "ﬄ", "ﬅ", "ﬆ"})
    if (text.starts_with(one)) return true;
  if (text.size() < 2) return false;
  const std::string pair = {static_cast<char>(text[0] | 0x20), static_cast<char>(text[1] | 0x20)};
  return pair == "ss" || pair == "ff" || pair == "fi" || pair == "fl" || pair == "st";
}

/// The pattern as PCRE2 writes it; `problem` names what has another meaning there.
std::string translate(std::string_view pattern, std::string& problem) {
  std::string made;
  bool in_set = false, any_case = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      const bool high_byte = next == 'x' && i + 1 < pattern.size() && pattern[i + 1] >= '8' && pattern[i + 1] != '{';
      if (std::string_view("hHXRvVQE").find(next) != std::string_view::npos || high_byte ||
          (in_set && (next == 'S' || next == 'W'))) {
        problem = fmt::format("\\{}{}", next, in_set ? " in a set" : "");
      } else if (next == 'p' || next == 'P') {
        const size_t end = std::min(pattern.find('}', i), pattern.size() - 1);
        const std::string_view name = pattern.substr(i + 1).starts_with('{') ? pattern.substr(i + 2, end - i - 2) : "";
        const std::string property = translated_property(name);
        if (property.empty()) problem = fmt::format("\\{}{{{}}}", next, name);
        made += fmt::format("\\{}{{{}}}", next, property);
        i = end;
      } else if (in_set && (next == 's' || next == 'w')) {
        made += next == 's' ? std::string(kSpaces) : word_set(true);
      } else if (const std::string escape = in_set ? "" : translated_escape(next); !escape.empty()) {
        made += escape;
      } else {
        made += c;
        made += next;
      }
      continue;
    }
    if (in_set && (c == '[' || (c == '&' && pattern.substr(i).starts_with("&&")))) problem = "a set in a set";
    if (!in_set && c == '}' && ends_with_count(made)) {
      const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
      const size_t open = made.rfind('{');
      if (next == '+' || (next == '?' && made.find(',', open) == std::string::npos))
        problem = fmt::format("a {} after a count", next);
      if (made[open + 1] == ',') problem = "a count without its lower bound";
    }
    if (!in_set && pattern.substr(i).starts_with("(?")) {
      // Ruby's m lets a dot match line ends, PCRE2's is what ^ and $ always do in Ruby.
      const size_t end = pattern.find_first_not_of("imxs-", i + 2);
      if (pattern.substr(i, end - i).find_first_of("ms") != std::string_view::npos) problem = "the option m or s";
      any_case = any_case || pattern.substr(i, end - i).find('i') != std::string_view::npos;
    }
    if (!in_set && any_case && folds_to_several(pattern.substr(i)))
      problem = "a letter that equals two others (ß and ss) after (?i";
    made += c;
    if (!in_set && c == '[') {
      in_set = true;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') made += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') made += pattern[++i];
    } else if (in_set && c == ']') {
      in_set = false;
    }
  }
  return made;
}

std::string explain_pcre2(int code) {
  unsigned char text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

template <auto kFree>
struct Pcre2Free {
  template <class T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};

struct Pattern::State {
  std::string name;
  std::unique_ptr<pcre2_code, Pcre2Free<pcre2_code_free>> code;
};

Pattern::Pattern(const std::string& pattern, bool literal, const std::filesystem::path& path)
    : state_(std::make_unique<State>()) {
  const std::string name = fmt::format("{}: the pattern of the pre_tokenizer", path.string());
  if (pattern.size() > kLongestPattern)
    throw DataError(fmt::format("{} has {} bytes, more than {}", name, pattern.size(), kLongestPattern));
  std::string problem;
  const std::string made = literal ? pattern : translate(pattern, problem);
  size_t shown = std::min<size_t>(pattern.size(), 200);
  while (shown < pattern.size() && continues_character(pattern[shown])) --shown;  // whole characters
  state_->name = fmt::format("{}, {}", name, pattern.substr(0, shown));
  if (!problem.empty()) throw DataError(fmt::format("{}: {} is not supported", state_->name, problem));
  const std::unique_ptr<pcre2_compile_context, Pcre2Free<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  TRIREME_CHECK(context != nullptr, "out of memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  const uint32_t options =
      literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  size_t place = 0;
  state_->code.reset(pcre2_compile(reinterpret_cast<const unsigned char*>(made.data()), made.size(), options, &error,
                                   &place, context.get()));
  if (state_->code == nullptr)
    throw DataError(fmt::format("{}: {} (at byte {} of it)", state_->name, explain_pcre2(error), place));
  pcre2_jit_compile(state_->code.get(), PCRE2_JIT_COMPLETE);  // without it pcre2_match interprets the pattern
}

Pattern::~Pattern() = default;

void Pattern::for_each_match(std::string_view text, const std::function<void(size_t, size_t)>& visit) const {
  const std::unique_ptr<pcre2_match_data, Pcre2Free<pcre2_match_data_free>> match(
      pcre2_match_data_create_from_pattern(state_->code.get(), nullptr));
  const std::unique_ptr<pcre2_match_context, Pcre2Free<pcre2_match_context_free>> context(
      pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_jit_stack, Pcre2Free<pcre2_jit_stack_free>> stack(
      pcre2_jit_stack_create(kSmallStack, kLargeStack, nullptr));
  TRIREME_CHECK(match != nullptr && context != nullptr && stack != nullptr, "out of memory");
  pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  const size_t* place = pcre2_get_ovector_pointer(match.get());
  const auto* subject = reinterpret_cast<const unsigned char*>(text.data());
  size_t last = std::string_view::npos;  // the end of the match before
  for (size_t at = 0; at <= text.size();) {
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int result = pcre2_match(state_->code.get(), subject, text.size(), at, options, match.get(), context.get());
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      options |= PCRE2_NO_JIT;
      result = pcre2_match(state_->code.get(), subject, text.size(), at, options, match.get(), context.get());
    }
    if (result == PCRE2_ERROR_NOMATCH) return;
    if (result < 0)
      throw DataError(fmt::format("{}: {} at byte {} of a text", state_->name, explain_pcre2(result), at));
    const size_t begin = place[0], end = place[1];
    if (begin > end) throw DataError(fmt::format("{}: a match ends before it begins (\\K?)", state_->name));
    if (begin == end) {  // as Oniguruma: no empty match where the last one ended, and the next one a character further
      const bool skip = last == end;
      at = end < text.size() ? end + character_at(text, end).bytes : text.size() + 1;
      if (skip) continue;
    } else {
      at = end;
    }
    last = end;
    visit(begin, end);
  }
}

}  // namespace trireme
