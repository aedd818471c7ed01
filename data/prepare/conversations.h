#pragma once
// Conversations of a data set: JSON lines, a JSON list, Parquet or Arrow.

#include "data/chat/chat_template.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme {

struct ConversationRow {
  Conversation conversation;
  /// A prompt and its completion that are texts: no conversation.
  bool texts = false;
  std::string prompt_text, completion_text;
  /// A row that is tokenised, and which of its ids are targets (1): no conversation either.
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  size_t input = 0;                  // number of the file, which the caller sets
  std::vector<std::string> columns;  // that are read
  std::string place;                 // "chat.jsonl:17", "chat.parquet: row 17", "chat.json: item 17"
  double bytes_done = 0;
  std::string problem;  // why it is no conversation, with the place; empty: it is one
};

/// Visits the conversations of a file in order. Each is a list of {role, content} in the field or column `field`, or of
/// {from, value} as ShareGPT has it, whose roles human, gpt, … become user, assistant, tool. `field` empty: "messages"
/// if it is there, else "conversations", else one of these:
///   prompt and completion, as TRL has them: lists of messages, of which the completion's are answers with a loss and
///   the prompt's have none; or two texts instruction and output (Alpaca), and, where they are there and not empty,
///   input, system and history, a list of pairs of texts: messages as LLaMA-Factory makes them, instruction and input
///   on lines of their own
///   input_ids, tokenised: a target is what labels (transformers: -100 elsewhere, otherwise equal to input_ids) and the
///   masks assistant_masks, completion_mask (TRL) and loss_mask say where they are there; tokens at the ends whose
///   attention_mask is 0 are padding
/// Other keys of a message are kept; null keys other than content count as
/// absent. The field "tools" is the list of tools, "chat_template_kwargs" an object of the template's variables. The
/// list, tools, tool_calls and chat_template_kwargs may be texts that hold JSON. DataError with the place for a file
/// that cannot be read on.
void for_each_conversation(const std::filesystem::path& path, const std::string& field,
                           const std::function<void(ConversationRow)>& visit);

}  // namespace trireme
