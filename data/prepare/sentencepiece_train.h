#pragma once
// Trains sentencepiece models.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

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

/// Llama's settings: unk 0, bos 1, eos 2, no padding piece, byte fallback, digits split, identity normalisation,
/// leading space. ConfigError, with the limit, if the vocabulary is too large or too small for the text; DataError for
/// its files.
TrainedTokenizer train_tokenizer(const TokenizerTraining& training);

}  // namespace trireme
