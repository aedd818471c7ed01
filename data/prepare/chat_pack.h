#pragma once
// Conversations to training rows: rendered by the model's chat template, tokenised, packed whole into rows of exactly
// seq_length tokens, with a loss on what the assistant says.

#include "data/prepare/chat_rows.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace trireme {

struct ChatPackOptions : ChatRowOptions {
  std::string field;       // empty: messages or conversations
  bool drop_long = false;  // else a conversation that is longer than a row loses its end
  bool last_only = false;  // the loss is on the last answer alone
  /// Of each input: how often a conversation of it is in the training rows. A part of 1 is a share of its
  /// conversations, drawn by their numbers. Empty: once.
  std::vector<double> weights;
};

/// What a row is made of: messages that the template renders, a text of a prompt and of its completion, or ids.
enum class ChatSource { kConversation, kTexts, kIds };

struct ChatPackReport {
  int64_t conversations = 0;  // read
  int64_t unreadable = 0, refused = 0, untrained = 0, cut = 0, dropped_long = 0;
  std::string first_unreadable, first_refusal, first_untrained;
  int64_t unwritten = 0;         // with what unwritten_message() says
  std::string first_unwritten;   // its place, and unwritten_message()
  std::set<ChatSource> sources;  // of the training rows
  std::string template_name;     // empty: there is none, which texts need not
  int64_t vocab_size = 0;
  bool by_generation_blocks = false;
  RowCounts train, valid;
  std::vector<RowCounts> inputs;  // of the training rows; without rows and padding
  /// The first conversation of the training rows: its text, and the texts that the loss is on.
  std::string sample;
  std::vector<std::string> sample_targets;
};

/// Packs whole conversations (write_whole_rows()). Keeps all tokens in memory. ConfigError, DataError with the place of
/// the conversation, WriteError.
ChatPackReport pack_conversations(const ChatPackOptions& options);

}  // namespace trireme
