#include "data/prepare/conversations.h"

#include "data/prepare/progress.h"
#include "data/stream/documents.h"
#include "data/text_file.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
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

Json field_of(const Json& object, const char* name) { return object.contains(name) ? object.at(name) : Json(); }

Json message_of(const Json& source, size_t number, const std::string& place) {
  const std::string where = fmt::format("{}: message {}", place, number + 1);
  const auto fail = [&](const std::string& what) { throw DataError(fmt::format("{}: {}", where, what)); };
  if (!source.is_object()) fail("not an object with role and content");
  const bool turns = !source.contains("role") && source.contains("from");  // as ShareGPT has it
  if (turns ? !source.contains("value") : !source.contains("role")) fail("neither role and content nor from and value");
  Json message = Json::object();
  bool trained = false;
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
    } else if (key == "train" || key == "training") {  // Axolotl
      if (value.is_null()) continue;
      if (value != true && value != false && value != 0 && value != 1)
        fail(fmt::format("\"{}\" is {}, expected true or false", key, value.dump()));
      trained = value == true || value == 1;
      const Json weight = trained ? 1 : 0, other = field_of(source, "weight");
      if (!other.is_null() && other != weight) fail(fmt::format("\"weight\" and \"{}\" differ", key));
      message["weight"] = weight;
    } else if (key == "train_detail" && !value.empty()) {
      fail("\"train_detail\", a loss on parts of a message, is not read: give the row as input_ids and labels");
    } else if (key == "content" || !value.is_null()) {
      message[key] = value;
    }
  }
  if (trained && message["role"] != "assistant") fail("\"train\" is true: only the assistant's messages have a loss");
  if (!message.contains("tool_calls") && (!message.contains("content") || message["content"].is_null()))
    fail("no \"content\"");
  return message;
}

Json messages_of(const Json& list, const std::string& name, const std::string& place) {
  if (!list.is_array())
    throw DataError(fmt::format("{}: '{}' is a JSON {}, expected a list", place, name, list.type_name()));
  Json messages = Json::array();
  for (size_t i = 0; i < list.size(); ++i) messages.push_back(message_of(list[i], i, place));
  return messages;
}

/// The text of a field; a null is empty, but for Alpaca's output.
std::string text_of(const Json& value, const std::string& name, const std::string& place) {
  if (value.is_null() && name != "output") return {};
  if (!value.is_string())
    throw DataError(fmt::format("{}: \"{}\" is a JSON {}, expected a text", place, name, value.type_name()));
  return value;
}

/// The system text of a row becomes the first message.
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

/// Tools and variables of the template.
void read_extras(const Json& object, const std::string& place, Conversation& conversation) {
  const auto found = [&](const char* key) {
    return object.contains(key) ? unwrapped(object.at(key), key, place) : Json();
  };
  if (const Json tools = found("tools"); !tools.is_null()) conversation.tools = objects_of(tools, "tools", place);
  conversation.variables = found("chat_template_kwargs");
  if (!conversation.variables.is_null() && !conversation.variables.is_object())
    throw DataError(fmt::format("{}: \"chat_template_kwargs\" is a JSON {}, expected an object", place,
                                conversation.variables.type_name()));
}

/// A row of a file, with the names of the columns that are not in it.
struct Source {
  const Json& object;
  const std::string& place;
  const std::vector<std::string>& unread;

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : object.items()) names.push_back(entry.key());
    names.insert(names.end(), unread.begin(), unread.end());
    return names;
  }
};

/// prompt and completion.
ConversationRow completion_of(const Json& object, const std::string& place) {
  const Json &prompt = object.at("prompt"), &completion = object.at("completion");
  ConversationRow row;
  row.texts = prompt.is_string();
  if (row.texts && completion.is_string()) {
    if (!text_of(field_of(object, "system"), "system", place).empty())
      throw DataError(place + ": 'system' is not read beside texts: write it into 'prompt'");
    row.prompt_text = prompt, row.completion_text = completion;
    return row;
  }
  if (row.texts || completion.is_string())
    throw DataError(place +
                    ": 'prompt' and 'completion' are a text and a list: write both as lists of {role, content}");
  Json& messages = row.conversation.messages = messages_of(prompt, "prompt", place);
  for (Json& message : messages)
    if (message["role"] == "assistant") message["weight"] = 0;
  for (const Json& message : messages_of(completion, "completion", place)) messages.push_back(message);
  add_system(object, place, messages);
  return row;
}

/// The messages of Alpaca's fields in front of the answer.
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

const std::vector<std::string> kTargetMasks = {"assistant_masks", "completion_mask", "loss_mask"};

/// input_ids, labels and masks.
ConversationRow tokens_of(const Json& object, const std::string& place) {
  const auto fail = [&](const std::string& what) { throw DataError(fmt::format("{}: {}", place, what)); };
  const auto several = [&](const std::string& what) {
    fail(what + ": a row of several documents; give each its own row");
  };
  if (const Json lengths = field_of(object, "seq_lengths"); lengths.size() > 1)
    several(fmt::format("'seq_lengths' has {} entries", lengths.size()));
  const size_t length = object.at("input_ids").size();
  /// Empty: the field is absent or null.
  const auto list = [&](const char* name) {
    const Json value = field_of(object, name);
    std::vector<int64_t> values;
    if (value.is_null()) return values;
    if (!value.is_array() || value.empty()) fail(fmt::format("'{}' is no list of integers, or empty", name));
    if (value.size() != length) fail(fmt::format("'{}' has {} entries, input_ids {}", name, value.size(), length));
    for (const Json& each : value) {
      if (!each.is_number_integer() && !each.is_boolean()) fail(fmt::format("'{}' holds {}", name, each.dump()));
      values.push_back(each.is_boolean() ? each.get<bool>() : each.get<int64_t>());
    }
    return values;
  };
  const std::vector<int64_t> ids = list("input_ids"), labels = list("labels"), positions = list("position_ids");
  std::vector<uint8_t> targets(length, 1);
  for (size_t i = 0; i < labels.size(); ++i) {
    targets[i] = labels[i] != -100;
    if (targets[i] != 0 && labels[i] != ids[i])
      fail(fmt::format("labels[{}] is {}, and input_ids[{}] {}: expected the same id, or -100 for no loss", i,
                       labels[i], i, ids[i]));
  }
  for (const std::string& name : kTargetMasks) {
    const std::vector<int64_t> mask = list(name.c_str());
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] != 0 && mask[i] != 1) fail(fmt::format("{}[{}] is {}, expected 0 or 1", name, i, mask[i]));
      if (mask[i] == 0) targets[i] = 0;
    }
  }
  std::vector<int64_t> attended = list("attention_mask");
  if (attended.empty()) attended.assign(length, 1);
  const auto first = std::find_if(attended.begin(), attended.end(), [](int64_t value) { return value != 0; });
  const auto last = std::find(first, attended.end(), 0);
  if (std::any_of(last, attended.end(), [](int64_t value) { return value != 0; }))
    fail("attention_mask is 0 between tokens; expected at the ends, for padding");
  ConversationRow row;
  for (auto at = first; at != last; ++at) {
    const auto i = static_cast<size_t>(at - attended.begin());
    if (ids[i] < 0 || ids[i] > INT32_MAX) fail(fmt::format("input_ids[{}] is {}", i, ids[i]));
    if (!positions.empty() && at != first && positions[i] != positions[i - 1] + 1)
      several(fmt::format("position_ids[{}] is {} after {}", i, positions[i], positions[i - 1]));
    if (attended[i] != 1) several(fmt::format("attention_mask[{}] is {}", i, attended[i]));
    row.ids.push_back(static_cast<int32_t>(ids[i]));
    row.mask.push_back(row.mask.empty() ? 0 : targets[i]);  // nothing predicts the first token
  }
  if (row.ids.empty()) fail("attention_mask is 0 everywhere");
  return row;
}

ConversationRow conversation_of(const Source& source, const std::string& field) {
  const auto& [object, place, unread] = source;
  if (!object.is_object()) throw DataError(place + ": not a JSON object");
  // Columns of files with rows of several kinds are null where a row is of another kind: all fields of a kind, if so.
  const auto has = [&](const char* name) { return object.contains(name) && !object.at(name).is_null(); };
  const auto has_both = [&](const char* one, const char* other) {
    return object.contains(one) && object.contains(other) && (has(one) || has(other));
  };
  std::string name = field;
  if (name.empty()) name = has("messages") ? "messages" : "conversations";
  ConversationRow result;
  const bool is_chat = field.empty() && has(name.c_str()),
             is_completion = field.empty() && has_both("prompt", "completion"),
             is_instruction = field.empty() && has_both("instruction", "output");
  const bool is_text = is_chat || is_completion || is_instruction;
  if ((field.empty() || field == "input_ids") && has("input_ids") && !(is_text && object.at("input_ids").empty())) {
    if (is_text)
      throw DataError(fmt::format(
          "{}: 'input_ids' beside texts, which may be the same: name what to read, as --field input_ids, or remove the "
          "other columns",
          place));
    return tokens_of(object, place);
  }
  if (field.empty() ? is_chat : object.contains(name)) {
    const Json list = unwrapped(object.at(name), name, place);
    result.conversation.messages = messages_of(list, name, place);
    add_system(object, place, result.conversation.messages);
  } else if (is_completion) {
    result = completion_of(object, place);
  } else if (is_instruction) {
    result.conversation.messages = question_of(object, place);
    result.conversation.messages.push_back(answer_of(object, "output", place));
  } else {
    const std::vector<std::string> names = source.names();
    throw DataError(fmt::format(
        "{}: no field '{}' (name it with --field){}; the object has: {}.{}", place, field.empty() ? "messages" : field,
        field.empty() ? ", nor prompt and completion, nor instruction and output, nor input_ids" : "",
        join(names, ", "), did_you_mean(name, names)));
  }
  read_extras(object, place, result.conversation);
  return result;
}

/// TRL's extract_prompt() of texts: the length in bytes of the common beginning, of whole characters.
size_t common_text(const std::string& a, const std::string& b) {
  const size_t least = std::min(a.size(), b.size());
  size_t same = 0;
  while (same < least && a[same] == b[same]) ++same;
  const auto inside = [&](const std::string& text) {
    return same < text.size() && (static_cast<unsigned char>(text[same]) & 0xC0u) == 0x80u;
  };
  if (same == least) {  // the last character of the shorter one stays its answer
    if (same > 0) --same;
    while (same > 0 && (inside(a) || inside(b))) --same;
    return same;
  }
  while (same > 0 && (inside(a) || inside(b))) --same;
  return same > 0 && a[same - 1] == ' ' ? same - 1 : same;
}

/// The same of messages.
size_t common_messages(const Json& a, const Json& b) {
  const size_t least = std::min(a.size(), b.size());
  for (size_t i = 0; i < least; ++i)
    if (nlohmann::json(a[i]) != nlohmann::json(b[i])) return i;
  return least - 1;
}

Json rest_of(const Json& list, size_t first) {
  Json rest = Json::array();
  for (size_t i = first; i < list.size(); ++i) rest.push_back(list[i]);
  return rest;
}

void require_filled(const Source& source, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (source.object.at(name).is_null()) throw DataError(fmt::format("{}: '{}' is null", source.place, name));
}

/// Where other programs have the question, or a part of it.
const std::vector<std::string> kBesideTexts = {"question",      "query",    "instruction", "input",
                                               "conversations", "messages", "system",      "history"};

/// `texts`: what is read.
void refuse_beside_texts(const Json& object, std::initializer_list<std::string> texts, const std::string& place) {
  for (const std::string& name : kBesideTexts) {
    const Json other = field_of(object, name.c_str());
    const bool is_known = other.is_string() && std::ranges::any_of(texts, [&](const std::string& text) {
                            return text.find(other.get_ref<const std::string&>()) != std::string::npos;
                          });
    if ((other.is_string() && !is_known) || (other.is_array() && !other.empty()))
      throw DataError(
          fmt::format("{}: '{}' is not read beside texts: write it into 'prompt', or remove it", place, name));
  }
}

PreferenceRow preference_of(const Source& source) {
  const auto& [object, place, unread] = source;
  const auto fail = [&](const std::string& what) { throw DataError(fmt::format("{}: {}", place, what)); };
  if (!object.is_object()) fail("not a JSON object");
  for (const char* name : {"chosen", "rejected"})
    if (!object.contains(name))
      fail(
          fmt::format("no field '{}' (a pair has chosen and rejected, and a prompt unless they begin with it); the "
                      "object has: {}",
                      name, join(source.names(), ", ")));
  require_filled(source, {"chosen", "rejected"});
  const Json &chosen = object.at("chosen"), &rejected = object.at("rejected");
  Json prompt = field_of(object, "prompt");
  const Json instruction = field_of(object, "instruction");
  const bool asked = chosen.is_string() && instruction.is_string() && instruction != "";
  if (asked && prompt == "") prompt = nullptr;
  PreferenceRow row;
  if (prompt.is_null() && asked) {  // as LLaMA-Factory
    Json others = object;
    for (const char* read : {"system", "history"}) others.erase(read);
    row.prompt.messages = question_of(object, place);
    refuse_beside_texts(others, {row.prompt.messages.back()["content"]}, place);
    row.chosen = Json::array({answer_of(object, "chosen", place)});
    row.rejected = Json::array({answer_of(object, "rejected", place)});
    read_extras(object, place, row.prompt);
    return row;
  }
  row.texts = chosen.is_string();
  if (chosen.is_string() != rejected.is_string() || (row.texts && !prompt.is_null() && !prompt.is_string()))
    fail(
        "'chosen', 'rejected' and 'prompt' are texts and lists of messages: write all of them as lists of {role, "
        "content}");
  if (row.texts) {
    refuse_beside_texts(object, {prompt.is_null() ? chosen.get<std::string>() : prompt.get<std::string>()}, place);
    row.chosen = chosen, row.rejected = rejected;
    if (!prompt.is_null()) {
      row.prompt_text = prompt.get<std::string>();
      return row;
    }
    const auto &a = chosen.get_ref<const std::string&>(), &b = rejected.get_ref<const std::string&>();
    const size_t same = common_text(a, b);
    row.prompt_text = a.substr(0, same);
    row.chosen = a.substr(same), row.rejected = b.substr(same);
    return row;
  }
  row.chosen = messages_of(chosen, "chosen", place);
  row.rejected = messages_of(rejected, "rejected", place);
  read_extras(object, place, row.prompt);
  if (prompt.is_array()) {
    row.prompt.messages = messages_of(prompt, "prompt", place);
    if (row.prompt.messages.empty()) fail("'prompt' is an empty list");
    add_system(object, place, row.prompt.messages);
    return row;
  }
  if (row.chosen.empty() || row.rejected.empty()) fail("'chosen' or 'rejected' is an empty list");
  const size_t same = common_messages(row.chosen, row.rejected);
  if (same == 0) fail("'chosen' and 'rejected' do not begin with the same message, and there is no list 'prompt'");
  for (size_t i = 0; i < same; ++i) row.prompt.messages.push_back(row.chosen[i]);
  row.chosen = rest_of(row.chosen, same);
  row.rejected = rest_of(row.rejected, same);
  add_system(object, place, row.prompt.messages);
  return row;
}

PreferenceRow judged_of(const Source& source) {
  const auto& [object, place, unread] = source;
  if (!object.is_object() || !object.contains("completion") ||
      (object.at("completion").is_null() && !field_of(object, "chosen").is_null()))
    return preference_of(source);
  const auto fail = [&](const std::string& what) { throw DataError(fmt::format("{}: {}", place, what)); };
  for (const char* name : {"prompt", "label"})
    if (!object.contains(name))
      fail(fmt::format("no field '{}' (a judged answer has prompt, completion and label); the object has: {}", name,
                       join(source.names(), ", ")));
  require_filled(source, {"prompt", "completion", "label"});
  const Json &prompt = object.at("prompt"), &completion = object.at("completion"), &label = object.at("label");
  if (!label.is_boolean()) fail(fmt::format("'label' is {}, expected true or false", label.dump()));
  if (prompt.is_string() != completion.is_string())
    fail("one of 'prompt' and 'completion' is a text: write both as lists of {role, content}");
  PreferenceRow row;
  row.label = label.get<bool>();
  row.texts = prompt.is_string();
  if (row.texts) {
    refuse_beside_texts(object, {prompt.get<std::string>()}, place);
    row.prompt_text = prompt.get<std::string>();
    row.chosen = completion;
    return row;
  }
  row.prompt.messages = messages_of(prompt, "prompt", place);
  row.chosen = messages_of(completion, "completion", place);
  if (row.prompt.messages.empty() || row.chosen.empty()) fail("'prompt' or 'completion' is an empty list");
  read_extras(object, place, row.prompt);
  add_system(object, place, row.prompt.messages);
  return row;
}

std::vector<std::string> columns_of_pairs() {
  std::vector<std::string> names = {"prompt", "chosen", "rejected", "tools", "chat_template_kwargs"};
  names.insert(names.end(), kBesideTexts.begin(), kBesideTexts.end());
  return names;
}

/// What a row has beside the columns that are read may be meant for the loss.
void say_unread(const fs::path& path, const Source& source, const std::vector<std::string>& columns) {
  std::vector<std::string> others = source.names();
  std::erase_if(others, [&](const std::string& name) { return std::ranges::find(columns, name) != columns.end(); });
  if (!others.empty()) log_info(fmt::format("{}: not read: {}", path.string(), join(others, ", ")));
}

/// Visits what `read` makes of each object of a file; a DataError of it is the row's problem.
template <class Row>
void for_each_row(const fs::path& path, const std::vector<std::string>& columns,
                  const std::vector<std::string>& optional, const std::function<void(Row)>& visit,
                  const std::function<Row(const Source&)>& read) {
  double before = 0;
  bool first = true;
  for (const fs::path& file : fs::is_directory(path) ? document_files(path) : std::vector<fs::path>{path}) {
    for_each_object(file, {.names = columns, .without_nulls = {"tools", "chat_template_kwargs"}, .optional = optional},
                    [&](const std::string& place, double bytes_done, const std::function<Json()>& object,
                        const std::vector<std::string>& unread) {
                      Row row;
                      try {
                        const Json value = object();
                        const Source source{value, place, unread};
                        row = read(source);
                        if (std::exchange(first, false)) say_unread(path, source, columns);
                      } catch (const Error& error) {
                        if (error.code() != ExitCode::kData) throw;
                        row.problem = error.what();
                      }
                      row.place = place;
                      row.bytes_done = before + bytes_done;
                      visit(std::move(row));
                    });
    before += total_size({file});
  }
}

}  // namespace

void for_each_conversation(const fs::path& path, const std::string& field,
                           const std::function<void(ConversationRow)>& visit) {
  const std::vector<std::string> texts = {"tools",  "chat_template_kwargs", "system",      "messages", "conversations",
                                          "prompt", "completion",           "instruction", "input",    "output",
                                          "history"},
                                 tokens = {"input_ids",   "labels",        "attention_mask", "position_ids",
                                           "seq_lengths", kTargetMasks[0], kTargetMasks[1],  kTargetMasks[2]};
  std::vector<std::string> columns = {"tools", "chat_template_kwargs", "system", field};
  if (field.empty() || field == "input_ids") columns = tokens;
  if (field.empty()) columns.insert(columns.end(), texts.begin(), texts.end());
  for_each_row<ConversationRow>(path, columns, field.empty() ? tokens : std::vector<std::string>(), visit,
                                [&](const Source& source) { return conversation_of(source, field); });
}

void for_each_preference(const fs::path& path, const std::function<void(PreferenceRow)>& visit) {
  for_each_row<PreferenceRow>(path, columns_of_pairs(), kBesideTexts, visit, preference_of);
}

void for_each_judged(const fs::path& path, const std::function<void(PreferenceRow)>& visit) {
  std::vector<std::string> columns = columns_of_pairs();
  columns.insert(columns.end(), {"completion", "label"});
  for_each_row<PreferenceRow>(
      path, columns, kBesideTexts,
      [&](PreferenceRow row) {
        if (row.label || !row.problem.empty()) return visit(std::move(row));
        PreferenceRow second = row;
        row.label = true;
        second.chosen = std::move(second.rejected);
        second.label = false;
        second.second = true;
        visit(std::move(row));
        visit(std::move(second));
      },
      judged_of);
}

}  // namespace trireme
