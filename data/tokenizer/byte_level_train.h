#pragma once
// Trains byte-level BPE: the merges of Hugging Face `tokenizers`' BpeTrainer.

#include "data/tokenizer/pre_split.h"
#include "trireme/formats/huggingface/byte_level_model.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme {

struct ByteLevelTraining {
  int64_t vocab_size = 32000;                             // special tokens, the 256 bytes and the learnt tokens
  int64_t min_frequency = 2;                              // of a pair that is merged
  std::vector<std::string> specials = {"<|endoftext|>"};  // they have the first ids
  std::string pattern = "gpt2";                           // gpt2 | llama3 | qwen2: the pre-split, and Qwen2's NFC
};

inline constexpr size_t kMaxTrainingWord = 1 << 14;  // bytes

/// Counts the words of texts, then learns merges of them.
class ByteLevelTrainer {
 public:
  /// ConfigError for a vocabulary without room for the bytes, an unknown pattern, or a special token twice or empty.
  explicit ByteLevelTrainer(const ByteLevelTraining& training);
  /// Counts the words of a text, which is valid UTF-8. Words do not span two texts. Words of more than
  /// kMaxTrainingWord bytes are skipped and counted.
  void add(std::string_view text);
  /// The model: merges in the order of BpeTrainer(vocab_size, min_frequency, special_tokens, initial_alphabet =
  /// ByteLevel.alphabet()), among equally frequent pairs the pair with the smaller ids first. It has fewer tokens than
  /// vocab_size if the text has no more pairs. DataError when no text was added.
  ByteLevelModel train() const;

  int64_t words() const { return static_cast<int64_t>(counts_.size()); }  // different words
  int64_t long_words() const { return long_words_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  ByteLevelTraining training_;
  ByteLevelModel model_;  // without tokens
  PreSplitter splitter_;
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> counts_;
  int64_t long_words_ = 0;
};

}  // namespace trireme
