#pragma once
// Chat templates of Hugging Face models: conversations to the text that the model was trained on.

#include <nlohmann/json.hpp>

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// A conversation: `messages` is a list of objects with role and content, `tools` a list of them or null, `variables`
/// an object of further variables (enable_thinking …) or null; they win over the template's.
struct Conversation {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;
  nlohmann::ordered_json variables;
};

/// The text of a conversation and what of it the assistant says: bytes [first, second), ascending, not empty.
struct ChatText {
  std::string text;
  std::vector<std::pair<size_t, size_t>> assistant;
};

/// A template and its variables. Const members are thread-safe.
class ChatTemplate {
 public:
  /// `name`: of the file, for messages. DataError with line and column for wrong syntax.
  ChatTemplate(const std::string& source, std::string name, const std::map<std::string, std::string>& variables = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;

  /// The template of a model directory: chat_template.jinja, else chat_template of tokenizer_config.json. `which`: of
  /// several named ones; empty = "default". With `which` also additional_chat_templates/<which>.jinja. Its variables
  /// are the special tokens of special_tokens_map.json and tokenizer_config.json (bos_token, eos_token …), and
  /// `variables`, which win. A model's template "tool_use" serves the conversations with tools where `which` is empty,
  /// as in transformers. DataError where there is none.
  static ChatTemplate open(const std::filesystem::path& directory, const std::string& which = {},
                           const std::map<std::string, std::string>& variables = {});

  /// What transformers' apply_chat_template(messages, tokenize=False) gives: reasoning_content, thinking and reasoning
  /// are names of one field. DataError with the template's line and column for what the template refuses, and for what
  /// of Jinja is not supported.
  std::string render(const Conversation& conversation, bool add_generation_prompt) const;

  /// The whole conversation, and the assistant's part of it: what the {% generation %} blocks of the template wrote;
  /// without such blocks, for the assistant's message i the text of messages 0 … i after that of messages 0 … i-1 with
  /// add_generation_prompt. DataError where the latter is not a beginning of the former: such a template writes earlier
  /// messages in another way once later ones are there. Messages with "weight": 0 are no part. DataError also for a
  /// template that writes a null as "None". The time is linear in the number of messages: of a conversation of more
  /// than 64, some answers of each kind are compared with the texts of the shorter conversations, and the others lie
  /// in the same way in what the template's loop wrote for them.
  ChatText training_text(const Conversation& conversation) const;

  const std::string& name() const;
  bool has_generation_blocks() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Special tokens (bos_token …) of a model directory's special_tokens_map.json and tokenizer_config.json.
std::map<std::string, std::string> named_tokens(const std::filesystem::path& directory);

}  // namespace trireme
