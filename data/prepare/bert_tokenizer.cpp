#include "data/prepare/bert_tokenizer.h"

#include "data/prepare/bert_unicode.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace trireme {
namespace {

constexpr size_t kMaxWord = 200;        // characters; a longer word is [UNK]
constexpr size_t kMaxRemembered = 64;   // bytes; longer words are not cached
constexpr size_t kMaxKnown = 1u << 20;  // cached words

/// text without the white space around it, as str.strip().
std::string_view python_strip(std::string_view text) {
  size_t begin = text.size(), end = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    if (unicode_is_python_space(next_character(text, at))) continue;
    begin = std::min(begin, start);
    end = at;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view{};
}

}  // namespace

BertVocab::BertVocab(const std::filesystem::path& path) {
  const std::string text = read_text_file(path, ExitCode::kData);
  hash_ = xxh3_64(text.data(), text.size());
  if (const size_t good = valid_utf8_prefix(text); good != text.size())
    throw DataError(fmt::format("{}: byte {} is not UTF-8: is this a vocab.txt?", path.string(), good));
  std::string_view rest = text;
  std::vector<const std::string*> order;  // distinct tokens
  while (!rest.empty()) {
    const size_t end = rest.find_first_of("\r\n");
    const auto [entry, is_new] = ids_.insert_or_assign(std::string(python_strip(rest.substr(0, end))), lines_++);
    longest_ = std::max(longest_, entry->first.size());
    if (is_new) order.push_back(&entry->first);
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + (rest.substr(end).starts_with("\r\n") ? 2 : 1));
  }
  if (size() > std::numeric_limits<int16_t>::max())
    throw DataError(fmt::format("{}: {} lines, but BERT's files store ids as int16: at most {}", path.string(),
                                format_count(size()), std::numeric_limits<int16_t>::max()));
  for (const std::string* token : order) {
    tokens_.push_back(static_cast<int16_t>(ids_.at(*token)));
    if (!token->starts_with('[') && std::ranges::any_of(*token, [](char c) { return c >= 'A' && c <= 'Z'; }))
      ++capitals_;
  }
  const auto special = [&](std::string_view token) {
    const int32_t id = find(token);
    if (id < 0) throw DataError(fmt::format("{}: has no token {}: is this BERT's vocab.txt?", path.string(), token));
    return static_cast<int16_t>(id);
  };
  unk = special("[UNK]");
  cls = special("[CLS]");
  sep = special("[SEP]");
  mask = special("[MASK]");
}

int32_t BertVocab::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

void BertTokenizer::encode(std::string_view line, std::vector<int16_t>& ids) {
  // The text between two of these is tokenised independently, so that its ids can be cached.
  const auto is_delimiter = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  for (size_t begin = 0, end = 0; begin < line.size(); begin = end + 1) {
    end = begin;
    while (end < line.size() && !is_delimiter(line[end])) ++end;
    if (begin == end) continue;
    const std::string_view chunk = line.substr(begin, end - begin);
    if (const auto known = known_.find(chunk); known != known_.end()) {
      const auto first = known_ids_.begin() + known->second.begin;
      ids.insert(ids.end(), first, first + known->second.count);
      continue;
    }
    const size_t before = ids.size();
    encode_chunk(chunk, ids);
    if (chunk.size() > kMaxRemembered) continue;
    if (known_.size() == kMaxKnown) {
      known_.clear();
      known_ids_.clear();
    }
    known_.emplace(chunk, Span{static_cast<uint32_t>(known_ids_.size()), static_cast<uint32_t>(ids.size() - before)});
    known_ids_.insert(known_ids_.end(), ids.begin() + static_cast<ptrdiff_t>(before), ids.end());
  }
}

void BertTokenizer::encode_chunk(std::string_view chunk, std::vector<int16_t>& ids) {
  cleaned_.clear();
  for (size_t at = 0; at < chunk.size();) {
    const char32_t c = next_character(chunk, at);
    if (unicode_is_dropped(c)) continue;
    if (unicode_is_cjk(c))
      cleaned_ += {U' ', c, U' '};
    else
      cleaned_ += unicode_is_space(c) ? U' ' : c;
  }
  for (size_t begin = 0, end = 0; begin < cleaned_.size(); begin = end + 1) {
    end = begin;
    while (end < cleaned_.size() && !unicode_is_python_space(cleaned_[end])) ++end;
    if (begin < end) encode_word(std::u32string_view(cleaned_).substr(begin, end - begin), ids);
  }
}

void BertTokenizer::encode_word(std::u32string_view word, std::vector<int16_t>& ids) {
  if (cased_)
    folded_ = word;
  else
    unicode_fold(word, folded_);
  const char32_t* const end = folded_.data() + folded_.size();
  for (const char32_t* begin = folded_.data(); begin < end;) {
    const char32_t* stop = begin + 1;
    if (!unicode_is_punctuation(*begin))
      while (stop < end && !unicode_is_punctuation(*stop)) ++stop;
    match_pieces(begin, stop, ids);
    begin = stop;
  }
}

void BertTokenizer::match_pieces(const char32_t* first, const char32_t* last, std::vector<int16_t>& ids) {
  const auto length = static_cast<size_t>(last - first);
  if (length > kMaxWord) return ids.push_back(vocab_.unk);
  // Two spare bytes before the word: "##" is written over the two bytes that precede a piece.
  bytes_.assign("##");
  boundaries_.clear();
  for (const char32_t* c = first; c < last; ++c) {
    boundaries_.push_back(bytes_.size());
    append_utf8(bytes_, *c);
  }
  boundaries_.push_back(bytes_.size());
  const size_t before = ids.size();
  for (size_t start = 0; start < length;) {
    const size_t begin = boundaries_[start] - (start == 0 ? 0 : 2);
    if (start > 0) bytes_.replace(begin, 2, "##");
    size_t end = length;
    int32_t id = -1;
    for (; end > start; --end) {
      const size_t bytes = boundaries_[end] - begin;
      if (bytes > vocab_.longest()) continue;
      id = vocab_.find(std::string_view(bytes_).substr(begin, bytes));
      if (id >= 0) break;
    }
    if (id < 0) {
      ids.resize(before);
      return ids.push_back(vocab_.unk);
    }
    ids.push_back(static_cast<int16_t>(id));
    start = end;
  }
}

}  // namespace trireme
