#include "data/tokenizer/added_tokens.h"

#include "data/tokenizer/characters.h"

#include <algorithm>

namespace trireme {
namespace {

bool is_word_character(char32_t c) { return (character_flags()[c] & kWordCharacter) != 0; }
bool is_space_character(char32_t c) { return class_of(character_flags()[c]) == CharacterClass::kSpace; }

/// Its neighbours are not word characters.
bool stands_alone(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !is_word_character(character_before(text, begin).code)) &&
         (end == text.size() || !is_word_character(character_at(text, end).code));
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, std::string_view content) {
  uint32_t node = 0;
  for (const char c : content) {
    const uint64_t step = static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(c);
    const auto [place, is_new] = children_.emplace(step, static_cast<uint32_t>(ends_.size()));
    if (is_new) ends_.push_back(-1);
    node = place->second;
  }
  first_[static_cast<unsigned char>(content.front())] = true;
  ends_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

AddedTokenFinder::Match AddedTokenFinder::next(std::string_view text, size_t at) const {
  if (tokens_.empty()) return {};
  for (; at < text.size(); ++at) {
    if (!first_[static_cast<unsigned char>(text[at])]) continue;
    Match match;
    uint32_t node = 0;
    for (size_t i = at; i < text.size(); ++i) {
      const auto child = children_.find(static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(text[i]));
      if (child == children_.end()) break;
      node = child->second;
      if (ends_[node] >= 0) match = {&tokens_[static_cast<size_t>(ends_[node])], at, i + 1};
    }
    if (match.token == nullptr) continue;
    if (!match.token->single_word || stands_alone(text, match.begin, match.end)) return match;
    at = match.end - 1;  // what it covers is not searched again
  }
  return {};
}

size_t AddedTokenFinder::begin_of(std::string_view text, const Match& match, size_t done) const {
  size_t begin = match.begin;
  while (match.token->lstrip && begin > 0) {
    const Character before = character_before(text, begin);
    if (!is_space_character(before.code)) break;
    begin -= before.bytes;
  }
  return std::max(begin, match.token->lstrip ? done : size_t{0});
}

size_t AddedTokenFinder::end_of(std::string_view text, const Match& match) const {
  size_t end = match.end;
  while (match.token->rstrip && end < text.size()) {
    const Character after = character_at(text, end);
    if (!is_space_character(after.code)) break;
    end += after.bytes;
  }
  return end;
}

}  // namespace trireme
