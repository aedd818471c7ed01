#include "data/tokenizer/byte_level_tokenizer.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace trireme {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// The bytes of an incomplete or invalid character that one U+FFFD stands for.
size_t maximal_part(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0xC2 || first > 0xF4) return 1;
  unsigned low = 0x80, high = 0xBF;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  if (first < 0xE0 || byte(1) < low || byte(1) > high) return 1;
  return first >= 0xF0 && byte(2) >= 0x80 && byte(2) <= 0xBF ? 3 : 2;
}

}  // namespace

std::string replace_invalid_utf8(std::string bytes) {
  size_t good = valid_utf8_prefix(bytes);
  if (good == bytes.size()) return bytes;
  std::string text;
  for (std::string_view rest = bytes;; good = valid_utf8_prefix(rest)) {
    text += rest.substr(0, good);
    rest.remove_prefix(good);
    if (rest.empty()) return text;
    text += kReplacement;
    rest.remove_prefix(std::min(maximal_part(rest), rest.size()));
  }
}

ByteLevelTokenizer::ByteLevelTokenizer(ByteLevelModel model, const std::filesystem::path& path)
    : model_(std::move(model)), splitter_(model_.steps, path), encoder_(model_) {
  pieces_.resize(model_.tokens.size());
  for (size_t id = 0; id < model_.tokens.size(); ++id) pieces_[id].bytes = byte_level_bytes(model_.tokens[id]);
  for (const AddedToken& token : model_.added) add_token(token, true);
  base_vocab_size_ = vocab_size();
}

ByteLevelTokenizer::~ByteLevelTokenizer() = default;

void ByteLevelTokenizer::add_token(const AddedToken& token, bool of_file) {
  std::string content = token.content, composed;
  if (token.normalized && model_.nfc && normalise_nfc(content, composed)) content = composed;
  (token.normalized ? normalised_ : raw_).add(token, content);
  const auto id = static_cast<size_t>(token.id);
  if (id >= pieces_.size()) pieces_.resize(id + 1);
  pieces_[id] = {of_file ? byte_level_bytes(content) : content, of_file && token.special};
}

int32_t ByteLevelTokenizer::add_special(const std::string& text) {
  TRIREME_CHECK(!text.empty(), "an empty special token");
  for (const AddedToken& token : model_.added)
    if (token.content == text) return token.id;
  const auto known = std::find(model_.tokens.begin(), model_.tokens.end(), text);
  const auto id = known == model_.tokens.end() ? vocab_size() : static_cast<int64_t>(known - model_.tokens.begin());
  model_.added.push_back({.content = text, .id = static_cast<int32_t>(id)});
  add_token(model_.added.back(), false);
  return static_cast<int32_t>(id);
}

std::shared_ptr<BpeEncoder::Cache> ByteLevelTokenizer::take_cache() const {
  {
    const std::lock_guard lock(mutex_);
    if (!caches_.empty()) {
      auto cache = std::move(caches_.back());
      caches_.pop_back();
      return cache;
    }
  }
  return encoder_.make_cache();
}

void ByteLevelTokenizer::encode_words(std::string_view plain, size_t begin, BpeEncoder::Cache& cache,
                                      std::vector<int32_t>& ids, TextMarks* marks) const {
  if (marks == nullptr)
    return splitter_.split(plain, [&](std::string_view word) { encoder_.encode(word, cache, ids); });
  auto done = static_cast<int64_t>(begin);
  bool first = true;
  splitter_.split(plain, [&](std::string_view word) {
    size_t index = ids.size();
    encoder_.encode(word, cache, ids);
    // A model may put a space before the first word, which the text does not have.
    int64_t at = done - (std::exchange(first, false) && word.starts_with(' ') && !plain.starts_with(' ') ? 1 : 0);
    done = at + static_cast<int64_t>(word.size());
    for (; index < ids.size(); ++index) {
      at += static_cast<int64_t>(pieces_[static_cast<size_t>(ids[index])].bytes.size());
      marks->token(static_cast<size_t>(index + 1 == ids.size() ? done : std::clamp<int64_t>(at, 0, done)), index);
    }
  });
}

void ByteLevelTokenizer::encode(std::string_view text, std::vector<int32_t>& ids, TextMarks* marks) const {
  auto cache = take_cache();
  std::string composed;
  const auto found = [&](int32_t id, size_t end) {
    if (marks != nullptr) marks->token(end, ids.size());
    ids.push_back(id);
  };
  raw_.split(text, found, [&](std::string_view plain) {
    const auto begin = static_cast<size_t>(plain.data() - text.data()), end = begin + plain.size();
    const bool changed = model_.nfc && normalise_nfc(plain, composed);
    if (changed) plain = composed;
    // Places inside of a part that NFC changes are where its beginning up to them ends after NFC.
    TextMarks inner;
    if (marks != nullptr) {
      std::string head;
      for (size_t i = marks->tokens.size(); i < marks->places.size() && marks->places[i] < end; ++i) {
        const std::string_view before = text.substr(begin, marks->places[i] - std::min(begin, marks->places[i]));
        inner.places.push_back(changed && normalise_nfc(before, head) ? head.size() : before.size());
      }
    }
    TextMarks* const used = inner.places.empty() ? nullptr : &inner;
    const auto found_inside = [&](int32_t id, size_t id_end) {
      if (used != nullptr) used->token(id_end, ids.size());
      ids.push_back(id);
    };
    normalised_.split(plain, found_inside, [&](std::string_view words) {
      encode_words(words, static_cast<size_t>(words.data() - plain.data()), *cache, ids, used);
    });
    if (used != nullptr) marks->tokens.insert(marks->tokens.end(), inner.tokens.begin(), inner.tokens.end());
  });
  const std::lock_guard lock(mutex_);
  caches_.push_back(std::move(cache));
}

std::string ByteLevelTokenizer::decode(std::span<const int32_t> ids, bool with_specials) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const Piece& piece = pieces_[static_cast<size_t>(id)];
    if (with_specials || !piece.special) bytes += piece.bytes;
  }
  return replace_invalid_utf8(std::move(bytes));
}

}  // namespace trireme
