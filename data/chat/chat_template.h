#pragma once
// Chat templates of Hugging Face models: conversations to the text that the model was trained on.

#include <nlohmann/json.hpp>

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// A conversation: `messages` is a list of objects with role and content, `tools` a list of them or null, `variables`
/// an object of further variables (enable_thinking …) or null; they take precedence over the template's.
struct Conversation {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;
  nlohmann::ordered_json variables;
};

/// The text of a conversation and the assistant's parts: bytes [first, second), ascending, not empty.
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

  /// The template of a model directory: chat_template.jinja, else chat_template of tokenizer_config.json. `which`: the
  /// name, if there are several templates; empty = "default". With `which` also
  /// additional_chat_templates/<which>.jinja. Its variables are `variables` alone: ChatModel passes the special
  /// tokens (bos_token, eos_token …). If `which` is empty, a model's
  /// template "tool_use" serves conversations with tools, as in transformers. DataError if there is no template.
  static ChatTemplate open(const std::filesystem::path& directory, const std::string& which = {},
                           const std::map<std::string, std::string>& variables = {});

  /// The result of transformers' apply_chat_template(messages, tokenize=False): reasoning_content, thinking and
  /// reasoning are names of one field. DataError with the template's line and column for refusals of the template and
  /// for unsupported parts of Jinja.
  std::string render(const Conversation& conversation, bool add_generation_prompt) const;

  /// The whole conversation, and the assistant's parts: the output of the template's {% generation %} blocks; without
  /// such blocks, for each message i of the assistant, the text of messages 0 … i after the text of messages 0 … i-1
  /// with add_generation_prompt. DataError if the text of messages 0 … i does not begin with the latter: such a
  /// template writes earlier messages differently when later messages follow. Messages with "weight": 0 are not parts.
  /// DataError also for a template that writes a null as "None". The time is linear in the number of messages: of a
  /// conversation of more than 64, some answers of each kind are compared with the texts of the shorter conversations,
  /// and the others lie in the same way in what the template's loop wrote for them.
  ChatText training_text(const Conversation& conversation) const;

  const std::string& name() const;
  /// Whether the template's source has this text.
  bool mentions(std::string_view text) const;
  bool has_generation_blocks() const;
  /// ConfigError for a variable of --variable that the template does not name.
  void check_variables(const nlohmann::ordered_json& variables) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trireme
