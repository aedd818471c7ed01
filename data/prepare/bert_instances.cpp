#include "data/prepare/bert_instances.h"

#include "data/prepare/bert_unicode.h"
#include "data/prepare/python_random.h"
#include "data/text_file.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace trireme {
namespace {

bool is_blank(std::string_view line) {
  for (size_t at = 0; at < line.size();)
    if (!unicode_is_python_space(next_character(line, at))) return false;
  return true;
}

/// Makes the instances of one part, in the order in which the reference makes them.
class Maker {
 public:
  Maker(const BertDocuments& documents, const BertVocab& vocab, const BertInstanceOptions& options)
      : documents_(documents), vocab_(vocab), options_(options), random_(options.seed), order_(documents.size()) {
    masks_.resize(static_cast<size_t>(options.seq_length) + 1);
    for (size_t i = 0; i < masks_.size(); ++i) masks_[i] = static_cast<uint16_t>(options.masks(static_cast<int>(i)));
    std::iota(order_.begin(), order_.end(), 0u);
    random_.shuffle(order_);
    // Upper estimate: tokens of the text, about half as many random ones a pass, masks and positions. Reserved memory
    // costs nothing until it is written.
    data_.reserve(static_cast<size_t>(options.dupe_factor) * documents.tokens.size() * 2);
  }

  BertInstances make() {
    for (int pass = 0; pass < options_.dupe_factor; ++pass)
      for (size_t i = 0; i < order_.size(); ++i) add_document(i);
    return grouped();
  }

 private:
  struct Range {
    size_t begin, end;  // tokens
    size_t size() const { return end - begin; }
  };

  size_t first_sentence(size_t index) const { return documents_.documents[order_[index]]; }
  size_t sentence_count(size_t index) const { return documents_.documents[order_[index] + 1] - first_sentence(index); }
  Range tokens(size_t first_sentence, size_t last_sentence) const {
    return {documents_.sentences[first_sentence], documents_.sentences[last_sentence]};
  }

  void add_document(size_t index) {
    const size_t base = first_sentence(index), count = sentence_count(index);
    const auto most = static_cast<size_t>(options_.seq_length - 3);
    size_t target = most;
    if (random_.uniform() < options_.short_seq_prob)
      target = static_cast<size_t>(random_.between(2, static_cast<int64_t>(most)));
    for (size_t begin = 0, i = 0; i < count; ++i) {
      // [begin, i] are the sentences of the current chunk.
      if (i + 1 < count && tokens(base + begin, base + i + 1).size() < target) continue;
      const size_t sentences = i + 1 - begin;
      const size_t cut =
          sentences >= 2 ? static_cast<size_t>(random_.between(1, static_cast<int64_t>(sentences) - 1)) : 1;
      const Range a = tokens(base + begin, base + begin + cut);
      Range b = tokens(base + begin + cut, base + i + 1);
      const bool random_next = sentences == 1 || random_.uniform() < 0.5;
      if (random_next) {
        b = random_range(index, target > a.size() ? target - a.size() : 0);
        i = begin + cut - 1;  // unused sentences go into the next chunk
      }
      add_pair(a, b, random_next);
      begin = i + 1;
    }
  }

  /// Sentences of another document, starting at a random one, until there are `target` tokens.
  Range random_range(size_t index, size_t target) {
    size_t other = index;
    for (int i = 0; i < 10 && other == index; ++i)
      other = static_cast<size_t>(random_.between(0, static_cast<int64_t>(order_.size()) - 1));
    const size_t base = first_sentence(other), count = sentence_count(other);
    const auto start = static_cast<size_t>(random_.between(0, static_cast<int64_t>(count) - 1));
    size_t end = start + 1;
    while (end < count && tokens(base + start, base + end).size() < target) ++end;
    return tokens(base + start, base + end);
  }

  void add_pair(Range a, Range b, bool random_next) {
    while (a.size() + b.size() > static_cast<size_t>(options_.seq_length) - 3) {
      Range& longer = a.size() > b.size() ? a : b;
      if (random_.uniform() < 0.5)
        ++longer.begin;
      else
        --longer.end;
    }
    const size_t length = a.size() + b.size() + 3, masks = masks_[length];
    const size_t at = data_.size();
    starts_.push_back(at);
    lengths_.push_back(static_cast<uint16_t>(length));
    data_.resize(at + bert_record_size(static_cast<int>(length), static_cast<int>(masks)));
    int16_t* ids = data_.data() + at;
    const int16_t* source = documents_.tokens.data();
    ids[0] = vocab_.cls;
    std::copy(source + a.begin, source + a.end, ids + 1);
    ids[1 + a.size()] = vocab_.sep;
    std::copy(source + b.begin, source + b.end, ids + 2 + a.size());
    ids[length - 1] = vocab_.sep;
    ids[length] = static_cast<int16_t>(a.size() + 2);
    ids[length + 1] = random_next ? 1 : 0;
    mask(ids, length, a.size() + 1, masks);
  }

  void mask(int16_t* ids, size_t length, size_t middle_sep, size_t masks) {
    candidates_.clear();
    for (size_t i = 1; i + 1 < length; ++i)
      if (i != middle_sep) candidates_.push_back(static_cast<int16_t>(i));
    random_.shuffle(candidates_);
    int16_t *positions = ids + length + 2, *labels = positions + masks;
    std::copy_n(candidates_.begin(), masks, positions);
    std::copy_n(ids, length, original_.begin());
    for (size_t i = 0; i < masks; ++i) {
      int16_t& token = ids[positions[i]];
      if (random_.uniform() < 0.8)
        token = vocab_.mask;
      else if (!(random_.uniform() < 0.5))
        token =
            vocab_.tokens()[static_cast<size_t>(random_.between(0, static_cast<int64_t>(vocab_.tokens().size()) - 1))];
    }
    std::sort(positions, positions + masks);
    for (size_t i = 0; i < masks; ++i) labels[i] = original_[static_cast<size_t>(positions[i])];
  }

  BertInstances grouped() {
    std::vector<uint32_t> order(starts_.size());
    std::iota(order.begin(), order.end(), 0u);
    random_.shuffle(order);
    BertInstances result;
    result.seq_length = options_.seq_length;
    result.masks = masks_;
    result.count = order.size();
    result.records.resize(masks_.size());
    result.ranks.resize(masks_.size());
    std::vector<size_t> counts(masks_.size());
    for (const uint16_t length : lengths_) ++counts[length];
    for (size_t length = 0; length < counts.size(); ++length) {
      if (counts[length] == 0) continue;
      result.records[length].reserve(counts[length] * bert_record_size(static_cast<int>(length), masks_[length]));
      result.ranks[length].reserve(counts[length]);
    }
    for (uint32_t rank = 0; rank < order.size(); ++rank) {
      const uint16_t length = lengths_[order[rank]];
      const auto first = data_.begin() + static_cast<ptrdiff_t>(starts_[order[rank]]);
      auto& records = result.records[length];
      records.insert(records.end(), first, first + static_cast<ptrdiff_t>(bert_record_size(length, masks_[length])));
      result.ranks[length].push_back(rank);
    }
    return result;
  }

  const BertDocuments& documents_;
  const BertVocab& vocab_;
  const BertInstanceOptions& options_;
  PythonRandom random_;
  std::vector<uint32_t> order_;  // of the documents
  std::vector<uint16_t> masks_;
  std::vector<int16_t> candidates_, original_ = std::vector<int16_t>(static_cast<size_t>(options_.seq_length));
  std::vector<int16_t> data_;      // records in order of creation
  std::vector<size_t> starts_;     // of each in data_
  std::vector<uint16_t> lengths_;  // tokens of each
};

}  // namespace

void BertInstanceOptions::check() const {
  const auto fail = [](const std::string& what) { throw ConfigError(what); };
  if (seq_length < 16 || seq_length > 512) fail(fmt::format("--seq-length {}: expected 16 to 512", seq_length));
  if (max_predictions < 1 || max_predictions > seq_length)
    fail(fmt::format("--max-predictions {}: expected 1 to {}", max_predictions, seq_length));
  if (!(masked_lm_prob > 0 && masked_lm_prob < 1))
    fail(fmt::format("--masked-lm-prob {}: expected a number between 0 and 1", masked_lm_prob));
  if (!(short_seq_prob >= 0 && short_seq_prob <= 1))
    fail(fmt::format("--short-seq-prob {}: expected 0 to 1", short_seq_prob));
  if (dupe_factor < 1 || dupe_factor > 1000) fail(fmt::format("--dupe-factor {}: expected 1 to 1000", dupe_factor));
}

int BertInstanceOptions::masks(int length) const {
  // Python's round() rounds halves to even, as nearbyint does in the default rounding mode.
  const int wanted = std::max(1, static_cast<int>(std::nearbyint(length * masked_lm_prob)));
  return std::max(0, std::min({max_predictions, wanted, length - 3}));
}

size_t bert_record_size(int length, int masks) { return static_cast<size_t>(length + 2 + 2 * masks); }

BertInstance bert_record(const int16_t* record, int length, int masks) {
  const auto tokens = static_cast<size_t>(length), predictions = static_cast<size_t>(masks);
  const int16_t* positions = record + tokens + 2;
  return {{record, tokens},
          record[tokens],
          record[tokens + 1],
          {positions, predictions},
          {positions + predictions, predictions}};
}

BertDocuments read_bert_documents(const std::filesystem::path& path, BertTokenizer& tokenizer) {
  const MappedFile file(path, ExitCode::kData);
  std::string_view rest = file.text();
  refuse_non_text(path, rest);
  BertDocuments result;
  const auto end_document = [&] {
    const auto sentences = static_cast<uint32_t>(result.sentences.size() - 1);
    if (sentences > result.documents.back()) result.documents.push_back(sentences);
  };
  for (int64_t number = 1; !rest.empty(); ++number) {
    // Python's text mode ends lines at \n, \r\n and \r.
    const size_t end = std::min(rest.find_first_of("\r\n"), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(rest.size(), end + (rest.substr(end).starts_with("\r\n") ? 2 : 1)));
    if (!is_valid_utf8(line)) throw DataError(fmt::format("{}: line {} is not UTF-8", path.string(), number));
    if (is_blank(line)) {
      end_document();
      continue;
    }
    tokenizer.encode(line, result.tokens);
    if (result.tokens.size() > result.sentences.back()) result.sentences.push_back(result.tokens.size());
  }
  end_document();
  return result;
}

BertInstances make_bert_instances(const BertDocuments& documents, const BertVocab& vocab,
                                  const BertInstanceOptions& options) {
  options.check();
  return Maker(documents, vocab, options).make();
}

}  // namespace trireme
