#include "data/tokenizer/byte_level_tokenizer.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <algorithm>
#include <unordered_set>

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

void ByteLevelTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  auto cache = take_cache();
  std::string composed;
  const auto found = [&](int32_t id) { ids.push_back(id); };
  const auto words = [&](std::string_view plain) {
    splitter_.split(plain, [&](std::string_view word) { encoder_.encode(word, *cache, ids); });
  };
  raw_.split(text, found, [&](std::string_view plain) {
    if (model_.nfc && normalise_nfc(plain, composed)) plain = composed;
    normalised_.split(plain, found, words);
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
