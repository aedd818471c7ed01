#include "data/prepare/conversations.h"

#include "data/text_file.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// ShareGPT's names of the speakers.
std::string role_of(const std::string& from, const std::string& place) {
  static const std::vector<std::pair<std::vector<std::string_view>, const char*>> kRoles = {
      {{"human", "user"}, "user"},
      {{"gpt", "assistant", "chatgpt", "bing", "bard", "model"}, "assistant"},
      {{"system"}, "system"},
      {{"tool", "observation", "function_response"}, "tool"}};
  for (const auto& [names, role] : kRoles)
    if (std::find(names.begin(), names.end(), from) != names.end()) return role;
  throw DataError(fmt::format("{}: \"from\" is '{}', expected human, gpt, system or tool", place, from));
}

/// The value, or what it holds if it is a text: files whose rows differ in their types keep JSON in texts. An empty
/// text is null.
Json unwrapped(const Json& value, const std::string& name, const std::string& place) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return {};
  return parse_ordered_json(text, fmt::format("{}: the text in \"{}\"", place, name), ExitCode::kData);
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
  const bool turns = !source.contains("role") && source.contains("from");  // as ShareGPT has it
  if (turns ? !source.contains("value") : !source.contains("role")) fail("neither role and content nor from and value");
  Json message = Json::object();
  for (const auto& [key, value] : source.items()) {
    if (key == (turns ? "from" : "role")) {
      if (!value.is_string()) fail(fmt::format("\"{}\" is not a text", key));
      message["role"] = turns ? role_of(value.get<std::string>(), place) : value.get<std::string>();
    } else if (turns && key == "value") {
      if (!value.is_string()) fail("\"value\" is not a text");
      message["content"] = value;
    } else if (key == "tool_calls") {
      const Json calls = unwrapped(value, key, where);
      if (!calls.is_null()) message[key] = objects_of(calls, key, where);
    } else if (key == "weight" && !value.is_null()) {
      if (!value.is_number() || (value != 0 && value != 1))
        fail(fmt::format("\"weight\" is {}, expected 0 (no loss on the message) or 1", value.dump()));
      message[key] = value;
    } else if (key == "content" || !value.is_null()) {
      message[key] = value;
    }
  }
  if (!message.contains("tool_calls") && (!message.contains("content") || message["content"].is_null()))
    fail("no \"content\"");
  return message;
}

Conversation conversation_of(const Json& object, const std::string& field, const std::string& place) {
  if (!object.is_object()) throw DataError(place + ": not a JSON object");
  std::string name = field;
  if (name.empty()) name = object.contains("messages") ? "messages" : "conversations";
  if (!object.contains(name)) {
    std::vector<std::string> names;
    for (const auto& entry : object.items()) names.push_back(entry.key());
    throw DataError(fmt::format("{}: no field '{}' (name it with --field); the object has: {}.{}", place,
                                field.empty() ? "messages" : field, join(names, ", "), did_you_mean(name, names)));
  }
  const auto found = [&](const char* key) {
    return object.contains(key) ? unwrapped(object.at(key), key, place) : Json();
  };
  const Json list = unwrapped(object.at(name), name, place);
  if (!list.is_array())
    throw DataError(fmt::format("{}: '{}' is a JSON {}, expected a list", place, name, list.type_name()));
  Conversation result;
  for (size_t i = 0; i < list.size(); ++i) result.messages.push_back(message_of(list[i], i, place));
  if (const Json tools = found("tools"); !tools.is_null()) result.tools = objects_of(tools, "tools", place);
  result.variables = found("chat_template_kwargs");
  if (!result.variables.is_null() && !result.variables.is_object())
    throw DataError(fmt::format("{}: \"chat_template_kwargs\" is a JSON {}, expected an object", place,
                                result.variables.type_name()));
  return result;
}

}  // namespace

void for_each_conversation(const fs::path& path, const std::string& field,
                           const std::function<void(ConversationRow)>& visit) {
  const auto give = [&](const std::string& place, double bytes_done, const std::function<Json()>& object) {
    ConversationRow row{{}, place, bytes_done, {}};
    try {
      row.conversation = conversation_of(object(), field, place);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kData) throw;
      row.problem = error.what();
    }
    visit(std::move(row));
  };
  std::vector<std::string> columns = {field, "tools", "chat_template_kwargs"};
  if (field.empty()) {
    columns[0] = "messages";
    columns.emplace_back("conversations");
  }
  for_each_object(path, columns, give);
}

}  // namespace trireme
