#pragma once
// Conversations of a data set: JSON lines, a JSON list, or Parquet.

#include "data/chat/chat_template.h"

#include <filesystem>
#include <functional>
#include <string>

namespace trireme {

struct ConversationRow {
  Conversation conversation;
  std::string place;  // "chat.jsonl:17", "chat.parquet: row 17", "chat.json: item 17"
  double bytes_done = 0;
};

/// Visits the conversations of a file in order. Each is a list of {role, content} in the field or column `field`, or
/// of {from, value} as ShareGPT has it, whose roles human, gpt, … become user, assistant, tool. `field` empty:
/// "messages" if it is there, else "conversations". Other keys of a message are kept; the field "tools" is the list of
/// tools. Parquet gives texts only. DataError with the place.
void for_each_conversation(const std::filesystem::path& path, const std::string& field,
                           const std::function<void(ConversationRow)>& visit);

}  // namespace trireme
