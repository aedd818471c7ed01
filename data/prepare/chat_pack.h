#pragma once
// Conversations to training rows: rendered by the model's chat template, tokenised, packed whole into rows of exactly
// seq_length tokens, with a loss on what the assistant says.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

struct ChatPackOptions {
  std::vector<std::filesystem::path> inputs;
  std::string field;                    // empty: messages or conversations
  std::filesystem::path tokenizer;      // a model directory, or a tokenizer file beside tokenizer_config.json
  std::filesystem::path template_file;  // empty: the model's
  std::string template_name;
  nlohmann::ordered_json variables;  // of the template: an object
  int64_t seq_length = 0;
  std::filesystem::path output, valid_output;  // .npy (MLPerf's records), .h5 or .hdf5
  double valid_fraction = 0;                   // of the conversations
  bool one_per_row = false;
  bool drop_long = false;     // else a conversation that is longer than a row loses its end
  bool skip_refused = false;  // drops what is no conversation or is refused by the template; else they are errors
  unsigned threads = 0;       // 0: one per core
};

struct ChatSplit {
  int64_t conversations = 0, rows = 0, tokens = 0, targets = 0, padding = 0;
};

struct ChatPackReport {
  int64_t conversations = 0;  // read
  int64_t unreadable = 0, refused = 0, untrained = 0, cut = 0, dropped_long = 0;
  std::string first_unreadable, first_refusal, template_name;
  int64_t vocab_size = 0;
  bool by_generation_blocks = false;
  ChatSplit train, valid;
  /// The first conversation of the training rows: its text, and the texts that the loss is on.
  std::string sample;
  std::vector<std::string> sample_targets;
};

/// Packs conversations by the best fit: the longest first, each into the fullest row with enough space, or a new row.
/// Rows are in the order of their first conversations. The rest of a row is padding, a sequence of its own without
/// loss. Keeps all tokens in memory. ConfigError, DataError with the place of the conversation, WriteError.
ChatPackReport pack_conversations(const ChatPackOptions& options);

}  // namespace trireme
