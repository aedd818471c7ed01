#include "data/prepare/messages.h"

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;

/// ShareGPT's names of the speakers.
std::string role_of(const std::string& from, const std::string& place) {
  static const std::vector<std::pair<std::vector<std::string_view>, const char*>> kRoles = {
      {{"human", "user"}, "user"},
      {{"gpt", "assistant", "chatgpt", "bing", "bard", "model"}, "assistant"},
      {{"system"}, "system"},
      {{"tool", "observation", "function_response", "function"}, "tool"}};
  for (const auto& [names, role] : kRoles)
    if (std::find(names.begin(), names.end(), from) != names.end()) return role;
  throw DataError(fmt::format("{}: \"from\" is '{}', expected human, gpt, system, tool or function_call", place, from));
}

/// The tool_calls of ShareGPT's function_call, as LLaMA-Factory has it: a text with {name, arguments}, or a list of
/// them.
Json calls_of(const Json& value, const std::string& place) {
  Json functions = unwrapped(value, "value", place), calls = Json::array();
  if (!functions.is_array()) functions = Json::array({functions});
  for (const Json& function : functions) {
    if (!function.is_object() || !function.contains("name") || !function.contains("arguments"))
      throw DataError(place + ": the \"value\" of a function_call is not {name, arguments}, or a list of them");
    calls.push_back({{"type", "function"}, {"function", function}});
  }
  return calls;
}

bool is_filled(const Json& value) { return !value.empty() && value != ""; }

/// Lists and objects of nothing are none: `datasets` writes {bytes: null, path: null} for a picture that is not there.
bool holds_medium(const Json& value) {
  if (value.is_structured()) return std::any_of(value.begin(), value.end(), holds_medium);
  return is_filled(value) && value != false;
}

/// `list` must be a list of objects, which may be texts.
Json objects_of(const Json& list, const std::string& name, const std::string& place) {
  if (!list.is_array())
    throw DataError(fmt::format("{}: \"{}\" is a JSON {}, expected a list", place, name, list.type_name()));
  Json result = Json::array();
  for (const Json& each : list) {
    result.push_back(unwrapped(each, name, place));
    if (!result.back().is_object())
      throw DataError(
          fmt::format("{}: \"{}\" holds a JSON {}, expected objects", place, name, result.back().type_name()));
  }
  return result;
}

Json message_of(const Json& source, size_t number, const std::string& place) {
  const std::string where = fmt::format("{}: message {}", place, number + 1);
  const auto fail = [&](const std::string& what) { throw DataError(fmt::format("{}: {}", where, what)); };
  if (!source.is_object()) fail("not an object with role and content");
  const bool turns = field_of(source, "role").is_null() && source.contains("from");  // as ShareGPT has it
  if (turns ? !source.contains("value") : !source.contains("role")) fail("neither role and content nor from and value");
  Json message = Json::object();
  std::string weighed, trained;  // the keys that say whether the message has a loss, and that it is trained
  const auto weigh = [&](const std::string& key, bool has_loss) {
    const Json weight = has_loss ? 1 : 0;
    if (!weighed.empty() && message["weight"] != weight) fail(fmt::format("\"{}\" and \"{}\" differ", weighed, key));
    message["weight"] = weight;
    weighed = key;
  };
  for (const auto& [key, value] : source.items()) {
    if (turns && source.at("from") == "function_call" && (key == "from" || key == "value")) {
      message["role"] = "assistant";
      if (key == "value") message["tool_calls"] = calls_of(value, where);
    } else if (key == "function_call" && !value.is_null()) {
      fail("\"function_call\" is not read: write it as \"tool_calls\", a list of {type, function}");
    } else if (key == (turns ? "from" : "role")) {
      if (!value.is_string()) fail(fmt::format("\"{}\" is not a text", key));
      message["role"] = turns ? role_of(value.get<std::string>(), place) : value.get<std::string>();
    } else if (turns && key == "value") {
      if (!value.is_string()) fail("\"value\" is not a text");
      message["content"] = value;
    } else if (key == "tool_calls") {
      const Json calls = unwrapped(value, key, where);
      if (!calls.is_null()) message[key] = objects_of(calls, key, where);
    } else if ((key == "weight" || key == "loss_weight") && !value.is_null()) {  // OpenAI, LLaMA-Factory
      if (!value.is_number() || (value != 0 && value != 1))
        fail(fmt::format("\"{}\" is {}, expected 0 (no loss on the message) or 1", key, value.dump()));
      weigh(key, value == 1);
    } else if (key == "train" || key == "training" || key == "loss") {  // Axolotl, ms-swift
      if (value.is_null()) continue;
      if (value != true && value != false && value != 0 && value != 1)
        fail(fmt::format("\"{}\" is {}, expected true or false", key, value.dump()));
      weigh(key, value == true || value == 1);
      if (key != "loss" && message["weight"] == 1) trained = key;
    } else if ((key == "train_detail" || key == "loss_scale") && !value.empty()) {
      fail(fmt::format(
          "\"{}\", a loss of its own for a message or its parts, is not read: give the row as input_ids and "
          "labels",
          key));
    } else if (!value.is_null()) {
      if (key == "content" && value.is_array())
        for (const Json& part : value)  // a template would write nothing for it
          if (part.is_object() && field_of(part, "type") == "text" && !part.contains("text"))
            fail(fmt::format("a part of \"content\" is {}, expected {{\"type\": \"text\", \"text\": …}}", part.dump()));
      message[key] = value;
    }
  }
  if (!trained.empty() && message["role"] != "assistant")
    fail(fmt::format("\"{}\" is true: only the assistant's messages have a loss", trained));
  if (!message.contains("tool_calls") && !message.contains("content")) fail("no \"content\"");
  return message;
}

}  // namespace

std::vector<std::string> SourceRow::names() const {
  std::vector<std::string> names = keys_of(object.items());
  names.insert(names.end(), unread.begin(), unread.end());
  return names;
}

std::string SourceRow::hint() const {
  return row_tool_hint([&](const char* name) {
    return !field_of(object, name).is_null() || std::ranges::find(unread, name) != unread.end();
  });
}

void SourceRow::count_unread(const std::vector<std::string>& columns, std::map<std::string, int64_t>& counts) const {
  std::vector<std::string> others = unread;
  for (const auto& entry : object.items())
    if (is_filled(entry.value())) others.push_back(entry.key());
  for (const std::string& name : others)
    if (std::ranges::find(columns, name) == columns.end()) ++counts[name];
}

void say_unread(const std::filesystem::path& path, const std::map<std::string, int64_t>& counts) {
  std::vector<std::string> names;
  for (const auto& [name, count] : counts) names.push_back(fmt::format("{} of {}", name, counted(count, "row")));
  if (!names.empty()) log_info(fmt::format("{}: not read: {}", path.string(), join(names, ", ")));
}

void refuse_media(const Json& object, const std::string& place) {
  for (const std::string& name : kMediaColumns)
    if (holds_medium(field_of(object, name.c_str())))
      throw DataError(fmt::format("{}: '{}' is filled, and Trireme trains text models: drop such rows, or the column",
                                  place, name));
}

void refuse_beside_texts(const Json& object, std::initializer_list<std::string> texts, const std::string& place,
                         std::initializer_list<std::string_view> known) {
  for (const std::string& name : kBesideTexts) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const Json& other = field_of(object, name.c_str());
    const bool is_known = other.is_string() && std::ranges::any_of(texts, [&](const std::string& text) {
                            return text.find(trimmed(other.get_ref<const std::string&>())) != std::string::npos;
                          });
    if ((other.is_string() && !is_known) || (other.is_array() && !other.empty()))
      throw DataError(
          fmt::format("{}: '{}' is not read beside texts: write it into 'prompt', or remove it", place, name));
  }
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

const Json& field_of(const Json& object, const char* name) {
  static const Json kNull;
  return object.contains(name) ? object.at(name) : kNull;
}

void require_object(const Json& object, const std::string& place) {
  if (object.is_object()) return;
  const bool line = object.is_array() && place.find(": item ") == std::string::npos;
  const char* hint = line ? ": a file that is one list is named .json" : "";
  throw DataError(fmt::format("{}: not a JSON object{}", place, hint));
}

void require_filled(const Json& object, const std::string& place, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (object.at(name).is_null()) throw DataError(fmt::format("{}: '{}' is null", place, name));
}

Json unwrapped(const Json& value, const std::string& name, const std::string& place) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return {};
  return parse_ordered_json(text, fmt::format("{}: the text in \"{}\"", place, name), ExitCode::kData);
}

std::string text_of(const Json& value, const std::string& name, const std::string& place) {
  if (value.is_null() && name != "output") return {};
  if (!value.is_string())
    throw DataError(fmt::format("{}: \"{}\" is a JSON {}, expected a text", place, name, value.type_name()));
  return value;
}

Json messages_of(const Json& list, const std::string& name, const std::string& place) {
  if (!list.is_array())
    throw DataError(fmt::format("{}: '{}' is a JSON {}, expected a list", place, name, list.type_name()));
  Json messages = Json::array();
  for (size_t i = 0; i < list.size(); ++i) messages.push_back(message_of(list[i], i, place));
  return messages;
}

void add_system(const Json& object, const std::string& place, Json& messages) {
  const std::string system = text_of(field_of(object, "system"), "system", place);
  if (system.empty()) return;
  for (const Json& message : messages) {
    if (message["role"] != "system") continue;
    if (field_of(message, "content") == system) return;
    throw DataError(place + ": \"system\" and the system message differ: leave one of them out");
  }
  messages.insert(messages.begin(), Json({{"role", "system"}, {"content", system}}));
}

Json question_of(const Json& object, const std::string& place) {
  const auto text = [&](const Json& value, const std::string& name) { return text_of(value, name, place); };
  const auto field = [&](const char* name) { return field_of(object, name); };
  Json messages = Json::array();
  const auto add = [&](const char* role, std::string content) {
    messages.push_back({{"role", role}, {"content", std::move(content)}});
  };
  if (const std::string system = text(field("system"), "system"); !system.empty()) add("system", system);
  const Json history = unwrapped(field("history"), "history", place);
  if (!history.is_null() && !history.is_array())
    throw DataError(fmt::format("{}: \"history\" is a JSON {}, expected a list of pairs", place, history.type_name()));
  for (const Json& pair : history) {
    if (!pair.is_array() || pair.size() != 2)
      throw DataError(place + ": \"history\" holds what is no pair of a question and an answer");
    add("user", text(pair[0], "history"));
    add("assistant", text(pair[1], "history"));
  }
  std::string question = text(object.at("instruction"), "instruction");
  if (const std::string input = text(field("input"), "input"); !input.empty())
    question += (question.empty() ? "" : "\n") + input;
  add("user", question);
  return messages;
}

Json answer_of(const Json& object, const char* name, const std::string& place) {
  return {{"role", "assistant"}, {"content", text_of(object.at(name), name, place)}};
}

void read_extras(const Json& object, const std::string& place, Conversation& conversation) {
  const auto found = [&](const char* key) {
    return object.contains(key) ? unwrapped(object.at(key), key, place) : Json();
  };
  if (const Json tools = found("tools"); !tools.is_null()) conversation.tools = objects_of(tools, "tools", place);
  for (Json& tool : conversation.tools)  // LLaMA-Factory's; Cohere's and Anthropic's have no parameters
    if (tool.contains("name") && tool.contains("parameters") && !tool.contains("type") && !tool.contains("function"))
      tool = Json({{"type", "function"}, {"function", tool}});
  conversation.variables = found("chat_template_kwargs");
  if (!conversation.variables.is_null() && !conversation.variables.is_object())
    throw DataError(fmt::format("{}: \"chat_template_kwargs\" is a JSON {}, expected an object", place,
                                conversation.variables.type_name()));
}

}  // namespace trireme
