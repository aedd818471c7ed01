#include "data/tokenizer/byte_level_train.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <queue>

namespace trireme {
namespace {

struct PairHash {
  size_t operator()(uint64_t pair) const {
    pair *= 0x9E3779B97F4A7C15u;
    return pair ^ pair >> 32;
  }
};

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

/// A pair that may be merged next, with the words where it was seen since it was last queued.
struct Candidate {
  int64_t count = 0;
  uint64_t pair = 0;
  size_t words = 0;  // index into the lists of words
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

/// The words and the counts of their pairs while merges are made.
///
/// Counts, queue and lists are updated exactly as BpeTrainer does it: a pair keeps its count after it was merged, and
/// one that appears again is queued anew with the words of that time only. Both decide the order of merges where one
/// token is made of different pairs.
class Merging {
 public:
  void add_word(std::vector<int32_t> symbols, int64_t count) {
    const auto word = static_cast<uint32_t>(words_.size());
    for (size_t i = 0; i + 1 < symbols.size(); ++i) change(pair_of(symbols[i], symbols[i + 1]), count, word);
    words_.push_back(std::move(symbols));
    frequencies_.push_back(count);
  }

  /// Puts the pairs that were seen since the last call into the queue.
  void queue_new() {
    for (auto& [pair, words] : seen_)
      if (const int64_t count = counts_[pair]; count > 0) {
        queue_.push({count, pair, lists_.size()});
        lists_.push_back(std::move(words));
      }
    seen_.clear();
  }

  /// The most frequent pair; count 0 when there is none.
  Candidate pop() {
    while (!queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      const int64_t now = counts_[top.pair];
      if (top.count == now) return top;
      top.count = now;
      queue_.push(top);
    }
    return {};
  }

  void merge(const Candidate& candidate, int32_t result) {
    const std::vector<uint32_t> list = std::move(lists_[candidate.words]);
    const auto left = static_cast<int32_t>(candidate.pair >> 32), right = static_cast<int32_t>(candidate.pair);
    for (const uint32_t word : list) {
      std::vector<int32_t>& symbols = words_[word];
      const int64_t count = frequencies_[word];
      size_t kept = 0;
      for (size_t i = 0; i < symbols.size(); ++i) {
        if (symbols[i] != left || i + 1 == symbols.size() || symbols[i + 1] != right) {
          symbols[kept++] = symbols[i];
          continue;
        }
        ++i;
        if (kept > 0) {
          counts_[pair_of(symbols[kept - 1], left)] -= count;
          change(pair_of(symbols[kept - 1], result), count, word);
        }
        if (i + 1 < symbols.size()) {
          counts_[pair_of(right, symbols[i + 1])] -= count;
          change(pair_of(result, symbols[i + 1]), count, word);
        }
        symbols[kept++] = result;
      }
      symbols.resize(kept);
    }
    queue_new();
  }

 private:
  void change(uint64_t pair, int64_t count, uint32_t word) {
    counts_[pair] += count;
    std::vector<uint32_t>& words = seen_[pair];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  std::vector<std::vector<int32_t>> words_;
  std::vector<int64_t> frequencies_;
  std::unordered_map<uint64_t, int64_t, PairHash> counts_;
  std::unordered_map<uint64_t, std::vector<uint32_t>, PairHash> seen_;
  std::vector<std::vector<uint32_t>> lists_;
  std::priority_queue<Candidate> queue_;
};

ByteLevelModel model_without_tokens(const ByteLevelTraining& training) {
  ByteLevelModel model;
  std::string_view pattern;
  if (training.pattern == "gpt2") pattern = kGpt2Pattern;
  if (training.pattern == "llama3") pattern = kLlama3Pattern;
  if (training.pattern == "qwen2") pattern = kQwen2Pattern;
  if (pattern.empty()) throw ConfigError(fmt::format("--pattern {}: expected gpt2, llama3 or qwen2", training.pattern));
  model.steps.push_back({.pattern = std::string(pattern)});
  if (training.pattern == "qwen2") model.normalisers.push_back({});
  return model;
}

/// Of the first of `names` that is a special token; else of the first special token.
int32_t named_id(const ByteLevelModel& model, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    for (const AddedToken& token : model.added)
      if (token.content == name) return token.id;
  return model.added.front().id;
}

}  // namespace

ByteLevelTrainer::ByteLevelTrainer(const ByteLevelTraining& training)
    : training_(training), model_(model_without_tokens(training)), splitter_(model_.steps, "") {
  std::vector<std::string> sorted = training.specials;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    throw ConfigError("--special: a token is given twice");
  for (const std::string& special : sorted)
    if (special.empty() || !is_valid_utf8(special)) throw ConfigError("--special: a token is empty or not UTF-8");
  const int64_t fixed = 256 + static_cast<int64_t>(training.specials.size());
  if (training.vocab_size < fixed || training.vocab_size > (1 << 24))
    throw ConfigError(fmt::format("--vocab-size {}: expected {} (256 bytes and {}) to {}", training.vocab_size, fixed,
                                  counted(training.specials.size(), "special token"), 1 << 24));
  if (training.min_frequency < 0)
    throw ConfigError(fmt::format("--min-frequency {}: expected 0 or more", training.min_frequency));
}

void ByteLevelTrainer::add(std::string_view text) {
  std::string composed;
  if (!model_.normalisers.empty() && normalise_nfc(text, composed)) text = composed;
  splitter_.split(text, [&](std::string_view word) {
    if (word.size() > kMaxTrainingWord) {
      ++long_words_;
    } else if (const auto found = counts_.find(word); found != counts_.end()) {
      ++found->second;
    } else {
      counts_.emplace(word, 1);
    }
  });
}

ByteLevelModel ByteLevelTrainer::train() const {
  if (counts_.empty()) throw DataError("no text to train on: the input has no words");
  ByteLevelModel model = model_;
  std::unordered_map<std::string, int32_t> ids;
  const auto id_of = [&](const std::string& token) {
    const auto [place, is_new] = ids.emplace(token, static_cast<int32_t>(model.tokens.size()));
    if (is_new) model.tokens.push_back(token);
    return place->second;
  };
  for (const std::string& special : training_.specials)
    model.added.push_back({.content = special, .id = id_of(special)});
  std::vector<std::string> alphabet;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(static_cast<unsigned char>(b));
    alphabet.push_back(byte_level_token({&byte, 1}));
  }
  std::vector<std::string> sorted = alphabet;
  std::sort(sorted.begin(), sorted.end());  // UTF-8 sorts by code point
  for (const std::string& character : sorted) id_of(character);

  Merging merging;
  for (const auto& [word, count] : counts_) {
    std::vector<int32_t> symbols;
    for (const char c : word) symbols.push_back(ids.at(alphabet[static_cast<unsigned char>(c)]));
    merging.add_word(std::move(symbols), count);
  }
  merging.queue_new();
  std::unordered_map<uint64_t, size_t, PairHash> ranks;  // of a pair that is merged twice the later merge counts
  std::vector<ByteLevelMerge> merges;
  while (static_cast<int64_t>(model.tokens.size()) < training_.vocab_size) {
    const Candidate top = merging.pop();
    if (top.count < 1 || top.count < training_.min_frequency) break;
    const auto left = static_cast<int32_t>(top.pair >> 32), right = static_cast<int32_t>(top.pair);
    const int32_t result = id_of(model.tokens[static_cast<size_t>(left)] + model.tokens[static_cast<size_t>(right)]);
    ranks[top.pair] = merges.size();
    merges.push_back({left, right, result});
    merging.merge(top, result);
  }
  for (size_t i = 0; i < merges.size(); ++i)
    if (ranks[pair_of(merges[i].left, merges[i].right)] == i) model.merges.push_back(merges[i]);
  if (!model.added.empty()) {
    model.bos_id = named_id(model, {"<|begin_of_text|>", "<s>", "<bos>"});
    model.eos_id = named_id(model, {"<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>"});
  }
  return model;
}

}  // namespace trireme
