#pragma once
// Preferences of a data set: two answers to a prompt, or one that is judged. JSON lines, a JSON list, Parquet or Arrow.

#include "data/chat/chat_template.h"

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// A prompt and two answers to it, or one in `chosen`: texts, or messages that follow those of the prompt.
struct PreferenceRow {
  bool texts = false;
  Conversation prompt;                      // not of texts
  nlohmann::ordered_json chosen, rejected;  // lists of messages, or texts
  std::string prompt_text;
  std::optional<bool> label;         // of one answer: whether it is desirable
  bool second = false;               // one answer: the rejected one of the pair whose chosen one is the row before
  std::vector<std::string> columns;  // that are read
  std::string place;
  double bytes_done = 0;
  std::string problem;  // why it is none, with the place; empty: it is one
};

/// Visits the pairs of a file in order, as TRL takes them: the fields "prompt", "chosen" and "rejected" are texts, or
/// lists of messages as for_each_conversation() reads them. Without a prompt, or with one that is a text beside lists,
/// chosen and rejected are whole conversations or texts, and the prompt is their common beginning: all equal messages
/// (characters, but for a space at the end) from the first on, but never the whole of one. DataError with the place for
/// a file that cannot be read on.
void for_each_preference(const std::filesystem::path& path, const std::function<void(PreferenceRow)>& visit);

/// Visits the judged answers of a file in order, as TRL's KTOTrainer takes them: the fields "prompt", "completion" and
/// "label" (true or false), or those of pairs, whose chosen answers are desirable and whose rejected ones are not.
void for_each_judged(const std::filesystem::path& path, const std::function<void(PreferenceRow)>& visit);

}  // namespace trireme
