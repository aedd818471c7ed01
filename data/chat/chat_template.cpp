#include "data/chat/chat_template.h"

#include "data/chat/jinja_parser.h"
#include "data/chat/jinja_render.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTemplate = size_t{1} << 20;

bool has_generation(const jinja::Body& body) {
  return std::any_of(body.begin(), body.end(), [](const jinja::Statement& statement) {
    return statement.kind == jinja::Statement::Kind::kGeneration ||
           std::any_of(statement.bodies.begin(), statement.bodies.end(), has_generation);
  });
}

nlohmann::json read_json(const fs::path& path) {
  return parse_json(read_text_file(path, ExitCode::kData), path.string(), ExitCode::kData);
}

/// The template of tokenizer_config.json's "chat_template": a string, or a list of {name, template}.
std::string named_template(const fs::path& path, const nlohmann::json& value, const std::string& which) {
  if (value.is_string() && (which.empty() || which == "default")) return value.get<std::string>();
  std::vector<std::string> names;
  if (value.is_string()) names.emplace_back("default");
  if (!value.is_string() && !value.is_array())
    throw DataError(fmt::format("{}: \"chat_template\" is neither a text nor a list of named ones", path.string()));
  const std::string wanted = which.empty() ? "default" : which;
  for (size_t i = 0; value.is_array() && i < value.size(); ++i) {
    const auto name = member(value[i], "name"), text = member(value[i], "template");
    if (!name.is_string() || !text.is_string())
      throw DataError(
          fmt::format("{}: entry {} of \"chat_template\" lacks the text \"name\" or \"template\"", path.string(), i));
    if (name == wanted) return text.get<std::string>();
    names.push_back(name.get<std::string>());
  }
  throw DataError(fmt::format("{}: no chat template '{}'; it has: {}.{}", path.string(), wanted, join(names, ", "),
                              did_you_mean(wanted, names)));
}

}  // namespace

struct ChatTemplate::State {
  std::string name, source;
  jinja::Body body;
  jinja::Dict variables;
  bool generates = false;

  [[noreturn]] void fail(const jinja::TemplateError& error) const {
    const std::string_view before = std::string_view(source).substr(0, std::min(error.offset, source.size()));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t begin = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    throw DataError(
        fmt::format("{}:{}:{}: {}", name, line, 1 + jinja::character_count(before.substr(begin)), error.what));
  }

  jinja::Rendered run(const Conversation& conversation, size_t messages, bool prompt) const {
    try {
      jinja::Dict all = variables;
      jinja::List list;
      for (size_t i = 0; i < messages; ++i) list.items.push_back(jinja::Value::from_json(conversation.messages[i]));
      all.set("messages", jinja::Value(std::move(list)));
      all.set("tools", jinja::Value::from_json(conversation.tools));
      all.set("documents", jinja::Value());
      all.set("add_generation_prompt", jinja::Value(prompt));
      return jinja::render(body, all);
    } catch (const jinja::TemplateError& error) {
      fail(error);
    } catch (const jinja::ValueError& error) {
      throw DataError("the conversation holds " + error.what);
    }
  }
};

ChatTemplate::ChatTemplate(const std::string& source, std::string name,
                           const std::map<std::string, std::string>& variables)
    : state_(std::make_unique<State>()) {
  state_->name = std::move(name);
  if (source.size() > kMaxTemplate) throw DataError(fmt::format("{}: a template of more than 1 MiB", state_->name));
  state_->source = jinja::normalised_source(source);
  for (const auto& [key, value] : variables) state_->variables.set(key, jinja::Value(value));
  try {
    state_->body = jinja::parse_template(state_->source);
  } catch (const jinja::TemplateError& error) {
    state_->fail(error);
  }
  state_->generates = has_generation(state_->body);
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;

ChatTemplate ChatTemplate::open(const fs::path& directory, const std::string& which,
                                const std::map<std::string, std::string>& variables) {
  auto all = named_tokens(directory);
  for (const auto& [key, value] : variables) all[key] = value;
  if (!which.empty() && which != "default") {
    const fs::path other = safe_join(directory, "additional_chat_templates/" + which + ".jinja", ExitCode::kData);
    if (fs::is_regular_file(other)) return {read_text_file(other, ExitCode::kData, kMaxTemplate), other.string(), all};
  } else if (const fs::path file = directory / "chat_template.jinja"; fs::is_regular_file(file)) {
    return {read_text_file(file, ExitCode::kData, kMaxTemplate), file.string(), all};
  }
  const fs::path config = directory / "tokenizer_config.json";
  const auto value = fs::is_regular_file(config) ? member(read_json(config), "chat_template") : nlohmann::json();
  if (value.is_null())
    throw DataError(fmt::format(
        "{}: no chat template: neither chat_template.jinja nor \"chat_template\" in tokenizer_config.json; give one "
        "with --template",
        directory.string()));
  return {named_template(config, value, which), config.string() + ": chat_template", all};
}

std::string ChatTemplate::render(const Conversation& conversation, bool add_generation_prompt) const {
  return state_->run(conversation, conversation.messages.size(), add_generation_prompt).text;
}

ChatText ChatTemplate::training_text(const Conversation& conversation) const {
  const size_t count = conversation.messages.size();
  jinja::Rendered whole = state_->run(conversation, count, false);
  ChatText result{std::move(whole.text), {}};
  const auto add = [&](size_t begin, size_t end) {
    if (begin < end) result.assistant.emplace_back(begin, end);
  };
  if (state_->generates) {
    for (const auto& [begin, end] : whole.generated) add(begin, end);
    return result;
  }
  for (size_t i = 0; i < count; ++i) {
    const auto& message = conversation.messages[i];
    const auto role = message.is_object() ? message.find("role") : message.end();
    if (!message.is_object() || role == message.end() || *role != "assistant") continue;
    const std::string prompt = state_->run(conversation, i, true).text;
    const std::string until = i + 1 == count ? result.text : state_->run(conversation, i + 1, false).text;
    if (!until.starts_with(prompt) || !result.text.starts_with(until))
      throw DataError(fmt::format(
          "{}: the text of messages 1 to {} is not the beginning of the text of {}: where the assistant's part lies is "
          "not "
          "known; give a template with {{% generation %}} around it",
          state_->name, until.starts_with(prompt) ? i + 1 : i, until.starts_with(prompt) ? "all of them" : "one more"));
    add(prompt.size(), until.size());
  }
  return result;
}

const std::string& ChatTemplate::name() const { return state_->name; }
bool ChatTemplate::has_generation_blocks() const { return state_->generates; }

std::map<std::string, std::string> named_tokens(const fs::path& directory) {
  std::map<std::string, std::string> tokens;
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const fs::path path = directory / name;
    if (!fs::is_regular_file(path)) continue;
    const auto json = read_json(path);
    for (const char* key :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
      if (!json.is_object() || !json.contains(key)) continue;
      auto value = json.at(key);
      if (value.is_object()) value = member(value, "content");
      if (value.is_string())
        tokens[key] = value.get<std::string>();
      else
        tokens.erase(key);
    }
  }
  return tokens;
}

}  // namespace trireme
