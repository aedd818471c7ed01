#include "data/tokenizer/byte_level_tokenizer.h"

#include "data/tokenizer/characters.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <algorithm>
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

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string made;
  for (size_t at = 0; at < text.size();) {
    const size_t found = std::min(text.find(from, at), text.size());
    made += text.substr(at, found - at);
    if (found < text.size()) made += to;
    at = found + (found < text.size() ? from.size() : 0);
  }
  return made;
}

/// `begin` bytes of the text come from its first character; how many do after `step`, a replacement.
size_t start_after_replacing(std::string_view text, const NormaliserStep& step, size_t begin) {
  size_t kept = 0, at = 0;
  for (size_t found = text.find(step.from); found < begin; found = text.find(step.from, at)) {
    kept += found - at;
    at = found + step.from.size();
    if (character_begin(text, at) < begin) kept += step.to.size();
  }
  return kept + begin - std::min(at, begin);
}

/// The byte of a token such as <0x0A>; -1 for other tokens.
int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  return parse_whole<int>(token.substr(3, 2), 16).value_or(-1);
}

/// Bytes of the text that a piece of characters stands for, `mark` standing for a space.
size_t text_length(const std::string& piece, const std::string& mark, bool byte_fallback) {
  if (byte_fallback && byte_of_token(piece) >= 0) return 1;
  return replace_all(piece, mark, " ").size();
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

std::string decode_characters(const std::vector<DecoderStep>& steps, std::vector<std::string> texts) {
  if (steps.empty()) return join(texts, " ");
  for (const DecoderStep& step : steps) {
    switch (step.kind) {
      case DecoderStep::kReplace:
        for (std::string& text : texts) text = replace_all(text, step.from, step.to);
        break;
      case DecoderStep::kMetaspace:
        for (size_t i = 0; i < texts.size(); ++i)
          texts[i] = replace_all(texts[i], step.from, i == 0 && step.start > 0 ? "" : step.to);
        break;
      case DecoderStep::kFuse: texts = {join(texts, "")}; break;
      case DecoderStep::kStrip:
        for (std::string& text : texts) {
          for (int64_t n = 0; n < step.start && text.starts_with(step.from); ++n) text.erase(0, step.from.size());
          for (int64_t n = 0; n < step.stop && text.ends_with(step.from); ++n)
            text.erase(text.size() - step.from.size());
        }
        break;
      case DecoderStep::kByteFallback: {
        std::vector<std::string> made;
        std::string run;
        const auto flush = [&] {
          if (!is_valid_utf8(run))  // one for each byte, as `tokenizers`
            for (size_t i = 0; i < run.size(); ++i) made.emplace_back(kReplacement);
          else if (!run.empty())
            made.push_back(run);
          run.clear();
        };
        for (std::string& text : texts) {
          if (const int byte = byte_of_token(text); byte >= 0) {
            run += static_cast<char>(static_cast<unsigned char>(byte));
            continue;
          }
          flush();
          made.push_back(std::move(text));
        }
        flush();
        texts = std::move(made);
      }
    }
  }
  return join(texts, "");
}

ByteLevelTokenizer::ByteLevelTokenizer(ByteLevelModel model, const std::filesystem::path& path)
    : model_(std::move(model)), splitter_(model_.steps, path), encoder_(model_) {
  pieces_.resize(model_.tokens.size());
  if (!model_.scores.empty()) unigram_.emplace(model_);
  for (size_t id = 0; id < model_.tokens.size(); ++id)
    pieces_[id].bytes = model_.characters ? model_.tokens[id] : byte_level_bytes(model_.tokens[id]);
  for (const AddedToken& token : model_.added) {
    std::string content;
    if (token.normalized && normalise(token.content, content) && content.empty())
      throw DataError(path.string() + ": the normalizer leaves nothing of the added token '" + token.content + "'");
    add_token(token, true);
  }
  const char* kind = unigram_ ? "unigram" : model_.characters ? "BPE" : "byte-level BPE";
  facts_ = {model_, kind, vocab_size(), model_.leading};
}

ByteLevelTokenizer::~ByteLevelTokenizer() = default;

void ByteLevelTokenizer::add_token(const AddedToken& token, bool of_file) {
  std::string content = token.content, composed;
  if (token.normalized && normalise(content, composed)) content = composed;
  (token.normalized ? normalised_ : raw_).add(token, content);
  const auto id = static_cast<size_t>(token.id);
  if (id >= pieces_.size()) pieces_.resize(id + 1);
  // `tokenizers` no longer knows a special token that the normaliser has changed.
  const bool special = of_file && token.special && content == token.content;
  pieces_[id] = {of_file && !model_.characters ? byte_level_bytes(content) : content, special};
}

bool ByteLevelTokenizer::is_byte(int32_t id) const {
  return model_.byte_fallback && byte_of_token(pieces_[static_cast<size_t>(id)].bytes) >= 0;
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

bool ByteLevelTokenizer::normalise(std::string_view text, std::string& out, size_t* of_first) const {
  std::string made(text), composed;
  size_t begin = of_first == nullptr || text.empty() ? 0 : character_at(text, 0).bytes;
  for (const NormaliserStep& step : model_.normalisers) {
    if (step.kind == NormaliserStep::kNfc) {
      if (std::string head; begin > 0 && normalise_nfc(made.substr(0, begin), head)) begin = head.size();
      if (normalise_nfc(made, composed)) made.swap(composed);
    } else if (step.kind == NormaliserStep::kPrepend) {
      if (begin > 0) begin += step.to.size();
      if (!made.empty()) made.insert(0, step.to);
    } else {
      begin = start_after_replacing(made, step, begin);
      made = replace_all(made, step.from, step.to);
    }
  }
  if (of_first != nullptr) *of_first = begin;
  if (made == text) return false;
  out = std::move(made);
  return true;
}

void ByteLevelTokenizer::encode_characters(std::string_view part, bool first, BpeEncoder::Cache& cache,
                                           std::vector<int32_t>& ids) const {
  std::string changed;
  size_t of_first = 0;
  if (normalise(part, changed, &of_first)) part = changed;
  const auto words = [&](std::string_view text) {
    std::vector<std::string> list{std::string(text)};
    if (model_.metaspace)
      list =
          metaspace_words(*model_.metaspace, text, first && static_cast<size_t>(text.data() - part.data()) < of_first);
    for (const std::string& word : list) unigram_ ? unigram_->encode(word, ids) : encoder_.encode(word, cache, ids);
  };
  normalised_.split(part, [&](int32_t id, size_t) { ids.push_back(id); }, words);
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
    if (model_.characters) {
      const size_t first = ids.size();
      encode_characters(plain, begin == 0, *cache, ids);
      if (marks == nullptr) return;
      const std::string mark = model_.metaspace ? model_.metaspace->replacement : "\u2581";
      return marks->add_part(
          plain, begin, ids, first,
          [&](int32_t id) { return text_length(pieces_[static_cast<size_t>(id)].bytes, mark, model_.byte_fallback); },
          [&](std::string_view head, std::vector<int32_t>& out) { encode_characters(head, begin == 0, *cache, out); });
    }
    const bool changed = normalise(plain, composed);
    if (changed) plain = composed;
    // Places inside of a part that NFC changes are where its beginning up to them ends after NFC.
    TextMarks inner;
    if (marks != nullptr) {
      std::string head;
      for (size_t i = marks->tokens.size(); i < marks->places.size() && marks->places[i] < end; ++i) {
        const std::string_view before = text.substr(begin, marks->places[i] - std::min(begin, marks->places[i]));
        inner.places.push_back(changed && normalise(before, head) ? head.size() : before.size());
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
  if (model_.characters) {
    std::vector<std::string> texts;
    for (const int32_t id : ids) {
      const Piece& piece = pieces_[static_cast<size_t>(id)];
      if (!piece.bytes.empty() && (with_specials || !piece.special)) texts.push_back(piece.bytes);
    }
    return decode_characters(model_.decoder, std::move(texts));
  }
  std::string bytes;
  for (const int32_t id : ids) {
    const Piece& piece = pieces_[static_cast<size_t>(id)];
    if (with_specials || !piece.special) bytes += piece.bytes;
  }
  return replace_invalid_utf8(std::move(bytes));
}

}  // namespace trireme
