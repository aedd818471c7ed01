#include "data/prepare/conversations.h"

#include "data/prepare/messages.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;

/// prompt and completion.
ConversationRow completion_of(const Json& object, const std::string& place) {
  const Json &prompt = object.at("prompt"), &completion = object.at("completion");
  ConversationRow row;
  row.texts = prompt.is_string();
  row.columns = {"prompt", "completion"};
  require_filled(object, place, {"prompt", "completion"});
  if (row.texts && completion.is_string()) {
    refuse_beside_texts(object, {prompt.get<std::string>()}, place);
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

const std::vector<std::string> kTargetMasks = {"assistant_masks", "completion_mask", "loss_mask"},
                               kTokenColumns = {"input_ids",   "labels",          "attention_mask",  "position_ids",
                                                "seq_lengths", "assistant_masks", "completion_mask", "loss_mask"};

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
  const auto list = [&](const std::string& name, bool mask = false) {
    const Json value = field_of(object, name.c_str());
    std::vector<int64_t> values;
    if (value.is_null()) return values;
    if (!value.is_array() || value.empty()) fail(fmt::format("'{}' is no list of integers, or empty", name));
    if (value.size() != length) fail(fmt::format("'{}' has {} entries, input_ids {}", name, value.size(), length));
    for (const Json& each : value) {
      const bool fits = !each.is_number_unsigned() || each.get<uint64_t>() <= INT64_MAX;
      const bool whole = (each.is_number_integer() && fits) || each.is_boolean();
      if (!whole && !(mask && (each == 0.0 || each == 1.0)))  // masks of a table may be floats
        fail(fmt::format("'{}' holds {}", name, each.dump()));
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
    const std::vector<int64_t> mask = list(name, /*mask=*/true);
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] != 0 && mask[i] != 1) fail(fmt::format("{}[{}] is {}, expected 0 or 1", name, i, mask[i]));
      if (mask[i] == 0) targets[i] = 0;
    }
  }
  std::vector<int64_t> attended = list("attention_mask", /*mask=*/true);
  if (attended.empty()) attended.assign(length, 1);
  const auto first = std::find_if(attended.begin(), attended.end(), [](int64_t value) { return value != 0; });
  const auto last = std::find(first, attended.end(), 0);
  if (std::any_of(last, attended.end(), [](int64_t value) { return value != 0; }))
    fail("attention_mask is 0 between tokens; expected at the ends, for padding");
  ConversationRow row;
  row.columns = kTokenColumns;
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

ConversationRow conversation_of(const SourceRow& source, const std::string& field) {
  const auto& [object, place, unread] = source;
  require_object(object, place);
  // Columns of files with rows of several kinds are null where a row is of another kind: all fields of a kind, if so.
  const auto has = [&](const char* name) { return object.contains(name) && !object.at(name).is_null(); };
  const auto has_both = [&](const char* one, const char* other) {
    return object.contains(one) && object.contains(other) && (has(one) || has(other));
  };
  std::string name = field;
  if (name.empty())
    name = has("messages") && !(object.at("messages").empty() && has("conversations")) ? "messages" : "conversations";
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
    result.columns = {name};
  } else if (is_completion) {
    result = completion_of(object, place);
    if (result.texts) return result;
  } else if (is_instruction) {
    result.conversation.messages = question_of(object, place);
    result.conversation.messages.push_back(answer_of(object, "output", place));
    result.columns = {"instruction", "input", "output", "history"};
  } else {
    const std::vector<std::string> names = source.names();
    std::string hint = field.empty() ? source.hint() : "";
    if (field.empty() && object.contains("messages")) hint = " 'messages' is null: remove the row.";
    if (field.empty() && has("text")) hint = " Texts become rows with `trireme data pack`.";
    const Json turns = field_of(object, "conversation");
    const bool pairs = field.empty() && turns.is_array() && !turns.empty() && turns[0].contains("human");
    if (pairs) hint = " Turns are {role, content} or {from, value}: write {human, assistant} as two of them.";
    throw DataError(fmt::format(
        "{}: no field '{}' (name it with --field){}; the object has: {}.{}", place, field.empty() ? "messages" : field,
        field.empty() ? ", nor prompt and completion, nor instruction and output, nor input_ids" : "",
        join(names, ", "), hint.empty() ? did_you_mean(name, names) : hint));
  }
  read_extras(object, place, result.conversation);
  result.columns.insert(result.columns.end(), {"system", "tools", "chat_template_kwargs"});
  return result;
}

}  // namespace

void for_each_conversation(const std::filesystem::path& path, const std::string& field,
                           const std::function<void(ConversationRow)>& visit) {
  const std::vector<std::string> texts = {"tools",  "chat_template_kwargs", "system",      "messages", "conversations",
                                          "prompt", "completion",           "instruction", "input",    "output",
                                          "history"};
  std::vector<std::string> columns = {"tools", "chat_template_kwargs", "system", field};
  if (field.empty() || field == "input_ids") columns = kTokenColumns;
  std::vector<std::string> optional;
  if (field.empty()) {
    columns.insert(columns.end(), texts.begin(), texts.end());
    optional = kTokenColumns;
    for (const std::string& name : kBesideTexts)
      if (std::ranges::find(texts, name) == texts.end()) {
        columns.push_back(name);
        optional.push_back(name);
      }
  }
  for_each_row<ConversationRow>(path, columns, optional, visit,
                                [&](const SourceRow& source) { return conversation_of(source, field); });
}

}  // namespace trireme
