#include "data/prepare/conversations.h"

#include "data/prepare/documents.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/formats/arrow/parquet.h"
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

/// ShareGPT's names of those who speak.
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

Json message_of(const Json& source, size_t number, const std::string& place) {
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("{}: message {}: {}", place, number + 1, what));
  };
  if (!source.is_object()) fail("not an object with role and content");
  if (source.contains("role")) {
    if (!source.at("role").is_string()) fail("\"role\" is not a text");
    if (!source.contains("content") && !source.contains("tool_calls")) fail("no \"content\"");
    return source;
  }
  if (!source.contains("from") || !source.contains("value")) fail("neither role and content nor from and value");
  if (!source.at("from").is_string() || !source.at("value").is_string()) fail("\"from\" or \"value\" is not a text");
  return Json{{"role", role_of(source.at("from").get<std::string>(), place)}, {"content", source.at("value")}};
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
  const Json& list = object.at(name);
  if (!list.is_array())
    throw DataError(fmt::format("{}: '{}' is a JSON {}, expected a list", place, name, list.type_name()));
  Conversation result;
  for (size_t i = 0; i < list.size(); ++i) result.messages.push_back(message_of(list[i], i, place));
  if (object.contains("tools") && object.at("tools").is_array()) result.tools = object.at("tools");
  return result;
}

void visit_parquet(const fs::path& path, const std::string& field, const std::function<void(ConversationRow)>& visit) {
  const ParquetFile file(path);
  const double bytes =
      static_cast<double>(fs::file_size(path)) / static_cast<double>(std::max<int64_t>(file.rows(), 1));
  const std::string column = !field.empty()                                                     ? field
                             : file.has_column("conversations") && !file.has_column("messages") ? "conversations"
                                                                                                : "messages";
  // Which names the structs have is not told: ShareGPT's roles are known words.
  file.read_messages(column, [&](int64_t row, std::span<const ChatMessage> messages) {
    ConversationRow result{{}, fmt::format("{}: row {}", path.string(), row), bytes * static_cast<double>(row + 1)};
    for (const ChatMessage& message : messages) {
      if (!is_valid_utf8(message.role) || !is_valid_utf8(message.content))
        throw DataError(result.place + ": not UTF-8");
      std::string role(message.role);
      if (role == "human" || role == "gpt") role = role_of(role, result.place);
      result.conversation.messages.push_back(Json{{"role", role}, {"content", message.content}});
    }
    visit(std::move(result));
  });
}

}  // namespace

void for_each_conversation(const fs::path& path, const std::string& field,
                           const std::function<void(ConversationRow)>& visit) {
  if (path.extension() == ".parquet" || looks_like_parquet(path)) return visit_parquet(path, field, visit);
  const MappedFile file(path, ExitCode::kData);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  refuse_wide_text(path, text);
  const size_t first = text.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  if (path.extension() == ".json" && first != std::string_view::npos && text[first] == '[') {
    const Json list = parse_ordered_json(text, path.string(), ExitCode::kData);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string place = fmt::format("{}: item {}", path.string(), i);
      visit({conversation_of(list[i], field, place), place,
             static_cast<double>(text.size() * (i + 1)) / static_cast<double>(list.size())});
    }
    return;
  }
  int64_t number = 0;
  for (size_t at = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r\f\v") == std::string_view::npos) continue;
    const std::string place = fmt::format("{}:{}", path.string(), number);
    const Json object = parse_ordered_json(line, place, ExitCode::kData);
    visit({conversation_of(object, field, place), place, static_cast<double>(std::min(at, text.size()))});
  }
}

}  // namespace trireme
