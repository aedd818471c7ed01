#pragma once
// sentencepiece tokenizers: load, encode, decode, train, and add special tokens of chat templates.

#include "trireme/formats/huggingface/sentencepiece_model.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// A loaded sentencepiece model. Const members are thread-safe.
class Tokenizer {
 public:
  /// DataError for a file that is absent, damaged or not a sentencepiece model.
  explicit Tokenizer(const std::filesystem::path& model);
  Tokenizer(std::string serialized_model, const std::filesystem::path& name_for_errors);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  /// Makes `text` a single token and returns its id: the id of the existing piece with that name, otherwise the next id
  /// after the vocabulary.
  int32_t add_special(const std::string& text);

  /// Ids of UTF-8 text, without BOS and EOS. Special tokens are split out first (leftmost,
  /// longest), and the text between two of them is encoded by sentencepiece on its own: each such
  /// part gets sentencepiece's leading space. That is what Hugging Face's LlamaTokenizer and
  /// LlamaTokenizerFast do in their legacy mode, the default for Llama 2. A unigram model gives the segmentation of
  /// sentencepiece 0.2.3, whichever version is linked (unigram.h).
  std::vector<int32_t> encode(std::string_view text) const;
  /// encode() of every text, in order, on `threads` threads (0: one per core).
  std::vector<std::vector<int32_t>> encode_all(std::span<const std::string_view> texts, unsigned threads = 0) const;
  /// Text of ids; control pieces (BOS, EOS) give no text, special tokens give their name. DataError for an id outside
  /// the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;

  const SentencepieceModel& model() const;

  int64_t vocab_size() const;             // pieces and added special tokens
  int64_t base_vocab_size() const;        // pieces of the model file
  std::optional<int32_t> bos_id() const;  // none when the model has no such piece
  std::optional<int32_t> eos_id() const;

 private:
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;
  struct State;
  std::unique_ptr<State> state_;
};

struct TokenizerTraining {
  std::vector<std::filesystem::path> inputs;  // UTF-8 text, one sentence or paragraph a line
  int64_t vocab_size = 32000;                 // all pieces: unk, bos, eos, 256 bytes and the learnt ones
  std::string model_type = "bpe";             // bpe | unigram
  bool verbose = false;                       // sentencepiece's own log on stderr
  unsigned threads = 0;                       // 0: one per core
};

struct TrainedTokenizer {
  std::string serialized_model;
  int64_t lines = 0, bytes = 0;
  int64_t invalid_lines = 0, long_lines = 0;  // dropped: not UTF-8; over kMaxTrainingLine bytes
  std::string first_invalid;                  // "file:line"
};

inline constexpr int64_t kMaxTrainingLine = 1 << 20;

/// Llama's settings: unk 0, bos 1, eos 2, no padding piece, byte fallback, digits split, identity
/// normalisation, leading space. ConfigError when the text does not support so large (or allow so
/// small) a vocabulary, with the limit; DataError for its files.
TrainedTokenizer train_tokenizer(const TokenizerTraining& training);

}  // namespace trireme
