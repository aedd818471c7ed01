#pragma once
// The tokenizer of a model with the tokens that it added, and its chat template.

#include "data/chat/chat_template.h"
#include "data/tokenizer/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// Const members are thread-safe.
class ChatModel {
 public:
  /// `path`: a model directory, or a tokenizer file beside tokenizer_config.json. `template_file`, unless empty,
  /// replaces the model's template; `template_name` is ChatTemplate::open()'s. DataError; a model's template that is
  /// not there or has wrong syntax is an error of chat() only. `config` is Tokenizer's.
  explicit ChatModel(const std::filesystem::path& path, const std::filesystem::path& template_file = {},
                     const std::string& template_name = {}, const std::filesystem::path& config = {});

  const Tokenizer& tokenizer() const { return tokenizer_; }
  /// DataError where the model has none.
  const ChatTemplate& chat() const;
  bool has_chat() const { return chat_.has_value(); }
  /// The text of a special token: "eos_token" -> "</s>"; empty: there is none.
  std::string special(const std::string& name) const;
  int32_t padding() const { return tokenizer_.pad_id().value_or(tokenizer_.eos_id().value_or(0)); }
  /// Adds the special token with which the template ends an answer, unless it is there: the first that it writes after
  /// the answer's text. Adds nothing where the template writes none there, or refuses a question with an answer.
  void add_end_of_turn(std::vector<int64_t>& ends) const;
  /// The texts such as <|im_start|> that the template writes around messages and that the tokenizer spells, so that
  /// they become several tokens of ordinary text. None where the template refuses a question with an answer.
  std::vector<std::string> spelled_markers() const;
  /// Whether the template ends an answer with a special token.
  bool ends_turns() const { return end_of_turn().has_value(); }
  /// The special token with which the template ends an answer, where the files of the model name others alone as ends:
  /// programs that follow them do not stop at it. Empty: one of them, or there is no config.json. ModelError.
  std::string unlisted_end() const;
  /// The ids of the conversation as far as the next answer.
  std::vector<int32_t> prompt(const Conversation& conversation) const;

 private:
  bool is_special(int32_t id) const;
  std::optional<int32_t> end_of_turn() const;
  /// A question with an answer as the template writes it; empty: it refuses them.
  std::string example(bool with_system) const;

  std::filesystem::path directory_;
  Tokenizer tokenizer_;
  std::map<std::string, std::string> variables_;  // of the template: special tokens
  std::optional<ChatTemplate> chat_;
  std::string without_chat_;  // why there is none
};

/// "an answer ends at </s> (2), <|im_end|> (5)", for messages.
std::string ends_of_answers(const Tokenizer& tokenizer, const std::vector<int64_t>& ends);

/// Whether a model directory has a chat template.
bool has_chat_template(const std::filesystem::path& directory);

}  // namespace trireme
