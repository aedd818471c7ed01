#include "data/chat/chat_model.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/config_reader.h"
#include "trireme/formats/huggingface/folder_tokens.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAnswer = "trireme-answer";  // of example()

/// The directory whose tokenizer_config.json belongs to a tokenizer.
fs::path model_directory(const fs::path& tokenizer) {
  std::error_code error;
  return fs::is_directory(tokenizer, error) ? tokenizer : tokenizer.parent_path();
}

}  // namespace

ChatModel::ChatModel(const fs::path& path, const fs::path& template_file, const std::string& template_name,
                     const fs::path& config)
    : directory_(model_directory(path)), tokenizer_(path, config) {
  std::set<std::string> specials;
  for (const auto& [name, id] : {std::pair{"bos_token", tokenizer_.bos_id()}, {"eos_token", tokenizer_.eos_id()}})
    if (id) specials.insert(variables_[name] = tokenizer_.decode(std::vector<int32_t>{*id}, true));
  const TokenizerFolder folder(directory_);
  for (const auto& [name, text] : folder.named_tokens())
    if (text) specials.insert(variables_[name] = *text);
  specials.erase("");  // as files of Llama 1 name theirs
  // A tokenizer.json lists its special tokens itself; sentencepiece's stay text inside of a text.
  if (tokenizer_.kind() == "sentencepiece")
    for (const std::string& text : specials) tokenizer_.add_special(text);
  variables_.merge(folder.model_tokens());
  if (!template_file.empty()) {
    chat_.emplace(read_text_file(template_file, ExitCode::kData), template_file.string(), variables_);
    return;
  }
  try {
    chat_.emplace(ChatTemplate::open(directory_, template_name, variables_));
  } catch (const DataError& error) {
    without_chat_ = error.what();
  }
}

const ChatTemplate& ChatModel::chat() const {
  if (!chat_) throw DataError(without_chat_);
  return *chat_;
}

std::string ChatModel::special(const std::string& name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? std::string() : found->second;
}

bool ChatModel::is_special(int32_t id) const {
  if (id >= tokenizer_.base_vocab_size() || id == tokenizer_.eos_id()) return true;  // of add_special(), which has text
  const std::vector<int32_t> one = {id};
  return tokenizer_.decode(one).empty() && !tokenizer_.decode(one, true).empty();
}

std::string ChatModel::example(bool with_system) const {
  Conversation conversation;
  conversation.messages = {{{"role", "user"}, {"content", "question"}}, {{"role", "assistant"}, {"content", kAnswer}}};
  if (with_system)
    conversation.messages.insert(conversation.messages.begin(),
                                 nlohmann::ordered_json({{"role", "system"}, {"content", "instruction"}}));
  try {
    return chat().render(conversation, /*add_generation_prompt=*/false);
  } catch (const DataError&) {
    return {};
  }
}

std::vector<std::string> ChatModel::spelled_markers() const {
  std::vector<std::string> found;
  for (const bool with_system : {false, true}) {
    const std::string text = example(with_system);
    for (size_t begin = text.find('<'); begin != std::string::npos; begin = text.find('<', begin + 1)) {
      const size_t end = text.find_first_of("<> \t\r\n", begin + 1);
      if (end == std::string::npos || text[end] != '>' || end == begin + 1) continue;
      // <<SYS>> is a text of Llama 2, and what has a beginning and an end, as <think>, is one where it is no token.
      if ((begin > 0 && text[begin - 1] == '<') || (end + 1 < text.size() && text[end + 1] == '>')) continue;
      const std::string marker = text.substr(begin, end + 1 - begin), name = marker.substr(1);
      const bool closes = name.starts_with('/');
      if (name != "s>" && name != "/s>" && text.find(closes ? "<" + name.substr(1) : "</" + name) != std::string::npos)
        continue;
      const auto is_token = [&](int32_t id) { return tokenizer_.decode(std::vector{id}, true).ends_with(marker); };
      if (std::ranges::none_of(tokenizer_.encode(marker), is_token) && std::ranges::find(found, marker) == found.end())
        found.push_back(marker);
    }
  }
  return found;
}

std::optional<int32_t> ChatModel::end_of_turn() const {
  const std::string text = example(/*with_system=*/false);
  const size_t found = text.rfind(kAnswer);
  if (found == std::string::npos) return std::nullopt;
  for (const int32_t id : tokenizer_.encode(std::string_view(text).substr(found + std::string_view(kAnswer).size())))
    if (is_special(id)) return id;
  return std::nullopt;
}

void ChatModel::add_end_of_turn(std::vector<int64_t>& ends) const {
  if (const auto end = end_of_turn(); end && std::ranges::find(ends, *end) == ends.end()) ends.push_back(*end);
}

std::string ChatModel::unlisted_end() const {
  const auto end = end_of_turn();
  if (!end || *end == tokenizer_.eos_id() || !fs::is_regular_file(directory_ / "config.json")) return {};
  for (const char* name : {"generation_config.json", "config.json"})
    if (std::ranges::count(eos_ids_of(directory_ / name), *end) > 0) return {};
  return tokenizer_.decode(std::vector{*end}, true);
}

std::vector<int32_t> ChatModel::prompt(const Conversation& conversation) const {
  return tokenizer_.encode(chat().render(conversation, /*add_generation_prompt=*/true));
}

std::string ends_of_answers(const Tokenizer& tokenizer, const std::vector<int64_t>& ends) {
  std::vector<std::string> names;
  for (const int64_t id : ends)
    if (id < tokenizer.vocab_size())
      names.push_back(fmt::format("{} ({})", tokenizer.decode(std::vector{static_cast<int32_t>(id)}, true), id));
  return names.empty() ? "no token ends an answer" : "an answer ends at " + join(names, ", ");
}

bool has_chat_template(const fs::path& directory) {
  if (fs::is_regular_file(directory / "chat_template.jinja")) return true;
  const auto config = read_json_if_there(directory / "tokenizer_config.json", ExitCode::kData);
  return !member(config, "chat_template").is_null();
}

}  // namespace trireme
