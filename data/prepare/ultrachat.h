#pragma once
// Prepares ultrachat_200k as the Hugging Face 70B recipe does: ChatML text, special tokens, TRL's constant-length
// packing.

#include "data/tokenizer/tokenizer.h"
#include "trireme/arrow/parquet.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// Every message as <|im_start|>role, newline, content, <|im_end|>, newline.
std::string render_chatml(std::span<const ChatMessage> messages);

/// Adds the recipe's special tokens and returns them with their ids. The vocabulary's own <unk>,
/// <s> and </s> are split out of the text as well; new ids follow the vocabulary in the order in
/// which transformers 4.40 gives them (eos, pad, then the additional ones): <|im_end|>, <pad>,
/// <|im_start|>user, <|im_start|>assistant, <|im_start|>system.
std::vector<std::pair<std::string, int32_t>> add_chatml_specials(Tokenizer& tokenizer);

struct UltrachatOptions {
  std::vector<std::filesystem::path> inputs;  // Parquet files, or directories of them
  std::filesystem::path output_directory;     // gets train.npy and validation.npy, int32 [N, seq_length]
  int64_t seq_length = 2048;
  bool sft_only = false;  // false: "train" is every file with train in its name (train_gen before
                          // train_sft), as in the recipe
  uint64_t seed = 100;    // of Python's random, which shuffles the rows of each buffer
  unsigned threads = 0;
};

struct UltrachatSplit {
  std::vector<std::filesystem::path> files;
  std::filesystem::path output;
  int64_t conversations = 0, characters = 0, buffers = 0, tokens = 0, rows = 0, tail_tokens = 0;
};

struct UltrachatReport {
  std::vector<std::pair<std::string, int32_t>> specials;
  int64_t vocab_size = 0;         // pieces and special tokens
  int64_t padded_vocab_size = 0;  // the next multiple of 8: what the model's embedding needs
  UltrachatSplit train, valid;    // valid: no output if there are no files for it
  std::vector<std::string> samples;
};

/// TRL's ConstantLengthDataset: conversations are collected in a buffer until it holds seq_length * 3.6 * 1024
/// characters (code points). Each is tokenised on its own without BOS and EOS; the ids are concatenated and cut into
/// rows; the buffer's tail is dropped; the buffer's rows are shuffled. The special tokens are added to `tokenizer`.
UltrachatReport convert_ultrachat(Tokenizer& tokenizer, const UltrachatOptions& options);

}  // namespace trireme
