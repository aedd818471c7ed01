#include "data/tokenizer/characters.h"

#include "trireme/base/text.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <vector>

namespace trireme {
namespace {

#include "data/tokenizer/unicode_tables.inc"

constexpr char32_t kHangul = 0xAC00, kInitial = 0x1100, kVowel = 0x1161, kFinal = 0x11A7;
constexpr char32_t kInitials = 19, kVowels = 21, kFinals = 28, kSyllables = kInitials * kVowels * kFinals;

struct Composition {
  std::unordered_map<char32_t, std::u32string_view> parts;
  std::unordered_map<uint64_t, char32_t> whole;  // by pair()
  std::unordered_map<char32_t, uint8_t> combining_class;
  std::u32string storage;

  static uint64_t pair(char32_t first, char32_t second) { return uint64_t{first} << 32 | second; }

  Composition() {
    storage.assign(std::begin(kDecompositions), std::end(kDecompositions));
    for (size_t at = 0; at < storage.size(); at += 2 + storage[at + 1])
      parts.emplace(storage[at], std::u32string_view(storage).substr(at + 2, storage[at + 1]));
    // A character composes with the last part of the decomposition that the others are the decomposition of.
    std::map<std::u32string_view, char32_t> composed;
    for (const auto& [c, of] : parts)
      if (!(character_flags()[c] & kMayCompose)) composed.emplace(of, c);
    for (const auto& [of, c] : composed) {
      const std::u32string_view start = of.substr(0, of.size() - 1);
      whole.emplace(pair(start.size() == 1 ? start[0] : composed.at(start), of.back()), c);
    }
    for (size_t at = 0; at < std::size(kCombiningClasses); at += 2)
      combining_class.emplace(kCombiningClasses[at], static_cast<uint8_t>(kCombiningClasses[at + 1]));
  }

  uint8_t order(char32_t c) const {
    const auto found = combining_class.find(c);
    return found == combining_class.end() ? uint8_t{0} : found->second;
  }
  void decompose(char32_t c, std::u32string& out) const {
    if (c >= kHangul && c < kHangul + kSyllables) {
      const char32_t index = c - kHangul;
      out += kInitial + index / (kVowels * kFinals);
      out += kVowel + index % (kVowels * kFinals) / kFinals;
      if (index % kFinals != 0) out += kFinal + index % kFinals;
    } else if (const auto found = parts.find(c); found != parts.end()) {
      out += found->second;
    } else {
      out += c;
    }
  }
  char32_t compose(char32_t a, char32_t b) const {  // 0: none
    if (a >= kInitial && a < kInitial + kInitials && b >= kVowel && b < kVowel + kVowels)
      return kHangul + ((a - kInitial) * kVowels + (b - kVowel)) * kFinals;
    if (a >= kHangul && a < kHangul + kSyllables && (a - kHangul) % kFinals == 0 && b > kFinal && b < kFinal + kFinals)
      return a + (b - kFinal);
    const auto found = whole.find(pair(a, b));
    return found == whole.end() ? 0 : found->second;
  }
};

const Composition& composition() {
  static const Composition table;
  return table;
}

}  // namespace

const uint8_t* character_flags() {
  static std::array<uint8_t, 0x110000> flags;
  static const bool filled = [] {
    for (size_t at = 0; at < std::size(kCharacterRanges); at += 3)
      std::fill_n(flags.begin() + kCharacterRanges[at], kCharacterRanges[at + 1],
                  static_cast<uint8_t>(kCharacterRanges[at + 2]));
    return true;
  }();
  (void)filled;
  return flags.data();
}

void append_decomposed(char32_t c, std::u32string& out) { composition().decompose(c, out); }

bool normalise_nfc(std::string_view text, std::string& out) {
  const uint8_t* flags = character_flags();
  size_t at = 0;
  for (; at < text.size();) {
    const auto [c, bytes] = character_at(text, at);
    if (c >= 0x300 && (flags[c] & kMayCompose)) break;
    at += bytes;
  }
  if (at == text.size()) return false;

  const Composition& table = composition();
  std::u32string all;
  for (at = 0; at < text.size();) {
    const auto [c, bytes] = character_at(text, at);
    table.decompose(c, all);
    at += bytes;
  }
  // Marks in the order of their combining class, then composition with the last starter that is not blocked.
  std::vector<uint8_t> order(all.size());
  for (size_t i = 0; i < all.size(); ++i) order[i] = table.order(all[i]);
  std::vector<std::pair<uint8_t, char32_t>> marks;
  for (size_t i = 0; i < all.size();) {
    if (order[i] == 0) {
      ++i;
      continue;
    }
    const size_t begin = i;
    for (marks.clear(); i < all.size() && order[i] != 0; ++i) marks.emplace_back(order[i], all[i]);
    std::stable_sort(marks.begin(), marks.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t j = 0; j < marks.size(); ++j) std::tie(order[begin + j], all[begin + j]) = marks[j];
  }
  size_t kept = 0, starter = std::u32string::npos;
  int last = 0;  // class of the last kept mark after the starter; 0: none stands between
  for (size_t i = 0; i < all.size(); ++i) {
    const bool adjacent = starter != std::u32string::npos && kept == starter + 1;
    if (starter != std::u32string::npos && (adjacent || (order[i] != 0 && last < order[i]))) {
      if (const char32_t composed = table.compose(all[starter], all[i])) {
        all[starter] = composed;
        continue;
      }
    }
    if (order[i] == 0) starter = kept;
    last = order[i];
    all[kept++] = all[i];
  }
  out.clear();
  for (size_t i = 0; i < kept; ++i) append_utf8(out, all[i]);
  return out != text;
}

}  // namespace trireme
