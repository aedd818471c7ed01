#include "data/chat/chat_template.h"

#include "data/chat/jinja_render.h"
#include "data/chat/jinja_syntax.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

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

/// The template of tokenizer_config.json's "chat_template": a string, or a list of {name, template}. `names`: of those
/// in files.
std::string named_template(const fs::path& path, const nlohmann::json& value, const std::string& which,
                           std::vector<std::string> names) {
  if (value.is_string() && (which.empty() || which == "default")) return value.get<std::string>();
  if (value.is_string()) names.emplace_back("default");
  if (!value.is_null() && !value.is_string() && !value.is_array())
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
  throw DataError(fmt::format("{}: no chat template '{}'; it has: {} (--template-name takes one of them).{}",
                              path.parent_path().string(), wanted, join(names, ", "), did_you_mean(wanted, names)));
}

/// A message as transformers gives it to templates: its reasoning under the two names that templates read.
jinja::Value message_value(const nlohmann::ordered_json& message) {
  jinja::Value value = jinja::Value::from_json(message);
  if (value.dict() == nullptr) throw jinja::ValueError{"a message that is not an object"};
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const jinja::Value* found = value.dict()->find(name);
    if (found == nullptr || found->is_none()) continue;
    jinja::Dict dict;
    dict.set("thinking", *found);
    for (const auto& [key, each] : value.dict()->items) dict.set(key, each);
    dict.set("reasoning_content", *found);
    return jinja::Value(std::move(dict));
  }
  return value;
}

/// A conversation as values; prefixes of it share them.
struct Inputs {
  explicit Inputs(const Conversation& conversation) {
    try {
      for (const auto& message : conversation.messages) messages.push_back(message_value(message));
      tools = jinja::Value::from_json(conversation.tools);
      for (const auto& [key, value] : conversation.variables.items())
        variables.set(key, jinja::Value::from_json(value));
    } catch (const jinja::ValueError& error) {
      throw DataError("the conversation holds " + error.what);
    }
  }
  std::vector<jinja::Value> messages;
  jinja::Value tools;
  jinja::Dict variables;
};

bool is_assistant(const jinja::Value& message) {
  const jinja::Value* role = message.dict()->find("role");
  return role != nullptr && role->text() != nullptr && *role->text() == "assistant";
}

bool has_no_weight(const jinja::Value& message) {
  const jinja::Value* weight = message.dict()->find("weight");
  return weight != nullptr && weight->is_number() && weight->real() == 0;
}

/// The kind of a message: its fields and their types, and whether its text holds reasoning. Templates decide by these.
std::string kind_of(const jinja::Value& message) {
  std::string kind;
  for (const auto& [key, value] : message.dict()->items) {
    ((kind += key) += ':') += key == "role" ? jinja::to_text(value) : value.type_name();
    kind += value.truth() ? ',' : '-';
    if (value.text() != nullptr && value.text()->find("think>") != std::string::npos) kind += 't';
  }
  return kind;
}

}  // namespace

struct ChatTemplate::State {
  std::unique_ptr<ChatTemplate> with_tools;  // or null
  std::string name, source;
  jinja::Body body;
  jinja::Dict variables;
  bool generates = false;

  [[noreturn]] void fail(const jinja::TemplateError& error) const {
    const std::string_view before = std::string_view(source).substr(0, std::min(error.offset, source.size()));
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t begin = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    throw DataError(fmt::format("{}:{}:{}: {}", name, line, 1 + character_count(before.substr(begin)), error.what));
  }

  /// The first `count` messages.
  jinja::Rendered run(const Inputs& inputs, size_t count, bool prompt, bool for_training) const {
    try {
      jinja::Dict all = variables;
      for (const auto& [key, value] : inputs.variables.items) all.set(key, value);
      all.set("messages", jinja::Value(jinja::List{{inputs.messages.begin(),
                                                    inputs.messages.begin() + static_cast<std::ptrdiff_t>(count)}}));
      all.set("tools", inputs.tools);
      if (all.find("documents") == nullptr) all.set("documents", jinja::Value());
      all.set("add_generation_prompt", jinja::Value(prompt));
      return jinja::render(body, all, for_training);
    } catch (const jinja::TemplateError& error) {
      fail(error);
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
  const auto file_of = [&](const std::string& name) {
    const bool plain = name.empty() || name == "default";
    return plain ? directory / "chat_template.jinja"
                 : safe_join(directory, "additional_chat_templates/" + name + ".jinja", ExitCode::kData);
  };
  const fs::path config = directory / "tokenizer_config.json";
  const auto value = member(read_json_if_there(config, ExitCode::kData), "chat_template");
  std::vector<std::string> in_files;
  if (fs::is_regular_file(file_of(""))) in_files.emplace_back("default");
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory / "additional_chat_templates", error))
    if (entry.path().extension() == ".jinja") in_files.push_back(entry.path().stem().string());
  const auto read = [&](const std::string& name) -> ChatTemplate {
    if (const fs::path file = file_of(name); fs::is_regular_file(file))
      return {read_text_file(file, ExitCode::kData, kMaxTemplate), file.string(), variables};
    return {named_template(config, value, name, in_files), config.string() + ": chat_template", variables};
  };
  if (value.is_null() && in_files.empty())
    throw DataError(
        fmt::format("{}: no chat template: neither chat_template.jinja nor \"chat_template\" in tokenizer_config.json; "
                    "give one with --template",
                    directory.string()));
  ChatTemplate result = read(which);
  // Files win over tokenizer_config.json as a whole.
  const bool in_config =
      !fs::is_regular_file(file_of("")) && value.is_array() &&
      std::any_of(value.begin(), value.end(), [](const auto& each) { return member(each, "name") == "tool_use"; });
  if (which.empty() && (in_config || fs::is_regular_file(file_of("tool_use"))))
    result.state_->with_tools = std::make_unique<ChatTemplate>(read("tool_use"));
  return result;
}

std::string ChatTemplate::render(const Conversation& conversation, bool add_generation_prompt) const {
  if (state_->with_tools != nullptr && !conversation.tools.is_null())
    return state_->with_tools->render(conversation, add_generation_prompt);
  const Inputs inputs(conversation);
  return state_->run(inputs, inputs.messages.size(), add_generation_prompt, false).text;
}

namespace {

/// What `text` has where `other` differs from it, and a little before, in quotes.
std::string from_difference(const std::string& text, const std::string& other) {
  const auto same = std::ranges::mismatch(text, other).in1 - text.begin();
  size_t begin = std::max<size_t>(same, 20) - 20;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0u) == 0x80u) --begin;
  const std::string_view part = std::string_view(text).substr(begin, 60);
  return nlohmann::json(part.substr(0, valid_utf8_prefix(part))).dump();
}

constexpr size_t kShort = 64;  // messages: all answers of such a conversation are found by the shorter conversations

/// Finds the text of each answer where the template has no generation blocks.
template <class Run>
class Answers {
 public:
  /// run(messages, prompt): the text of the first messages.
  Answers(const std::string& name, const Inputs& inputs, const jinja::Rendered& whole, Run run)
      : name_(name), inputs_(inputs), whole_(whole), run_(std::move(run)) {}

  /// Bytes [first, second) of the text.
  std::pair<size_t, size_t> find(size_t i) {
    const size_t count = inputs_.messages.size();
    if (i == 0) return find_first();
    if (count <= kShort || whole_.messages.empty() || i + 1 == count) return compare(i);
    const std::string kind = kind_of(inputs_.messages[i - 1]) + '|' + kind_of(inputs_.messages[i]);
    const auto& part = whole_.messages[i];
    Pattern& pattern = patterns_[fmt::format("{}|{}", kind, part.loop)];
    const std::string_view written = std::string_view(whole_.text).substr(part.begin, part.end - part.begin);
    if (pattern.seen >= 2 && pattern.holds && written.starts_with(pattern.prompt))
      return {part.begin + pattern.prompt.size(), part.end};
    const auto found = compare(i);
    const bool fits = found.second == part.end && found.first >= part.begin;
    const std::string_view prompt = fits ? written.substr(0, found.first - part.begin) : std::string_view();
    pattern.holds = pattern.holds && fits && (pattern.seen == 0 || prompt == pattern.prompt);
    pattern.prompt = prompt;
    ++pattern.seen;
    return found;
  }

 private:
  struct Pattern {
    int seen = 0;
    bool holds = true;
    std::string prompt;
  };

  std::string until(size_t messages) {
    return messages == inputs_.messages.size() ? whole_.text : run_(inputs_, messages, false);
  }

  std::pair<size_t, size_t> compare(size_t i) {
    const std::string prompt = run_(inputs_, i, true), end = until(i + 1);
    const bool begins = end.starts_with(prompt);
    if (!begins || !whole_.text.starts_with(end))
      throw DataError(fmt::format(
          "{}: message {} is written in two ways: {} {}, {} {}; where the assistant's part lies is not known: give a "
          "template with {{% generation %}} around it{}",
          name_, i + 1, begins ? "as the last message" : "the prompt for it has",
          begins ? from_difference(end, whole_.text) : from_difference(prompt, end),
          begins ? "before others" : "the conversation",
          begins ? from_difference(whole_.text, end) : from_difference(end, prompt),
          i + 1 < inputs_.messages.size() ? ", or take the loss from other answers (--loss last)" : ""));
    return {prompt.size(), end.size()};
  }

  /// No message is before the answer, which templates seldom allow for: what they write before an answer is known from
  /// another conversation.
  std::pair<size_t, size_t> find_first() {
    Conversation other;
    other.messages = nlohmann::ordered_json::parse(R"([{"role": "user", "content": "x"}])");
    const Inputs question(other);
    const std::string before = run_(question, 1, false), prompt = run_(question, 1, true);
    const std::string end = until(1);
    const size_t found = prompt.starts_with(before) && prompt.size() > before.size() + 2
                             ? end.find(prompt.substr(before.size()))
                             : std::string::npos;
    if (found == std::string::npos || !whole_.text.starts_with(end))
      throw DataError(
          fmt::format("{}: the conversation begins with an answer, and where it lies in the text is not known; give a "
                      "template with {{% generation %}} around it",
                      name_));
    return {found + prompt.size() - before.size(), end.size()};
  }

  const std::string& name_;
  const Inputs& inputs_;
  const jinja::Rendered& whole_;
  Run run_;
  std::map<std::string, Pattern> patterns_;
};

}  // namespace

ChatText ChatTemplate::training_text(const Conversation& conversation) const {
  if (state_->with_tools != nullptr && !conversation.tools.is_null())
    return state_->with_tools->training_text(conversation);
  const Inputs inputs(conversation);
  jinja::Rendered whole = state_->run(inputs, inputs.messages.size(), false, true);
  ChatText result;
  const auto add = [&](size_t begin, size_t end) {
    if (begin < end) result.assistant.emplace_back(begin, end);
  };
  if (state_->generates) {
    const bool all = std::none_of(inputs.messages.begin(), inputs.messages.end(), has_no_weight);
    for (const auto& part : whole.generated) {
      if (!all && part.message < 0)
        throw DataError(
            fmt::format("{}: \"weight\": 0 is not supported: which message a generation block writes is not known, as "
                        "it is in no loop over the messages",
                        state_->name));
      if (all || !has_no_weight(inputs.messages[static_cast<size_t>(part.message)])) add(part.begin, part.end);
    }
  } else {
    Answers answers(state_->name, inputs, whole, [&](const Inputs& some, size_t messages, bool prompt) {
      return state_->run(some, messages, prompt, true).text;
    });
    for (size_t i = 0; i < inputs.messages.size(); ++i) {
      if (!is_assistant(inputs.messages[i]) || has_no_weight(inputs.messages[i])) continue;
      const auto [begin, end] = answers.find(i);
      add(begin, end);
    }
  }
  result.text = std::move(whole.text);
  return result;
}

const std::string& ChatTemplate::name() const { return state_->name; }
bool ChatTemplate::mentions(std::string_view text) const {
  return state_->source.find(text) != std::string::npos ||
         (state_->with_tools != nullptr && state_->with_tools->mentions(text));
}
bool ChatTemplate::has_generation_blocks() const { return state_->generates; }

namespace {

void add_names(const jinja::Expression* expression, std::vector<std::string>& names) {
  if (expression == nullptr) return;
  if (expression->kind == jinja::Expression::Kind::kName) names.push_back(expression->name);
  for (const auto& part : expression->parts) add_names(part.get(), names);
  for (const auto& [name, part] : expression->named) add_names(part.get(), names);
}

void add_names(const jinja::Body& body, std::vector<std::string>& names) {
  for (const jinja::Statement& statement : body) {
    for (const auto& expression : statement.expressions) add_names(expression.get(), names);
    for (const auto& parameter : statement.parameters) add_names(parameter.fallback.get(), names);
    for (const jinja::Body& inner : statement.bodies) add_names(inner, names);
  }
}

}  // namespace

void ChatTemplate::check_variables(const nlohmann::ordered_json& variables) const {
  std::vector<std::string> names;
  for (const ChatTemplate* one = this; one != nullptr; one = one->state_->with_tools.get())
    add_names(one->state_->body, names);
  for (const auto& [name, value] : variables.items())
    if (std::ranges::find(names, name) == names.end())
      throw ConfigError(
          fmt::format("--variable {}: {} has no such variable.{}", name, state_->name, did_you_mean(name, names)));
}

}  // namespace trireme
