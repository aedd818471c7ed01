#include "data/prepare/preferences.h"

#include "data/prepare/messages.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using Json = nlohmann::ordered_json;

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

const std::vector<std::string> kTextColumns = {"prompt", "chosen", "rejected", "completion", "label"},
                               kListColumns = {"prompt", "chosen", "rejected", "completion",
                                               "label",  "system", "tools",    "chat_template_kwargs"};

PreferenceRow preference_of(const SourceRow& source) {
  const auto& [object, place, unread] = source;
  const auto fail = [&](const std::string& what) { throw DataError(fmt::format("{}: {}", place, what)); };
  require_object(object, place);
  for (const char* name : {"chosen", "rejected"})
    if (!object.contains(name))
      fail(
          fmt::format("no field '{}' (a pair has chosen and rejected, and a prompt unless they begin with it; a judged "
                      "answer, with --unpaired, has prompt, completion and label); the object has: {}.{}",
                      name, join(source.names(), ", "), source.hint()));
  require_filled(object, place, {"chosen", "rejected"});
  const Json &chosen = object.at("chosen"), &rejected = object.at("rejected");
  Json prompt = field_of(object, "prompt");
  const Json instruction = field_of(object, "instruction");
  const bool asked = chosen.is_string() && instruction.is_string() && instruction != "";
  if (asked && prompt == "") prompt = nullptr;
  PreferenceRow row;
  if (prompt.is_null() && asked) {  // as LLaMA-Factory
    row.prompt.messages = question_of(object, place);
    refuse_beside_texts(object, {row.prompt.messages.back()["content"]}, place, {"system", "history"});
    row.chosen = Json::array({answer_of(object, "chosen", place)});
    row.rejected = Json::array({answer_of(object, "rejected", place)});
    read_extras(object, place, row.prompt);
    row.columns = kListColumns;
    row.columns.insert(row.columns.end(), {"instruction", "input", "history"});
    return row;
  }
  // LLaMA-Factory's pairs of ShareGPT: one message is an answer to the list beside it.
  row.columns = kListColumns;
  for (const char* name : {"conversations", "messages"})
    if (prompt.is_null() && chosen.is_object() && field_of(object, name).is_array()) {
      prompt = object.at(name);
      row.columns.emplace_back(name);
    }
  row.texts = chosen.is_string();
  if (chosen.is_string() != rejected.is_string() || (row.texts && !prompt.is_null() && !prompt.is_string()))
    fail(
        "'chosen', 'rejected' and 'prompt' are texts and lists of messages: write all of them as lists of {role, "
        "content}");
  if (row.texts) {
    row.columns = kTextColumns;
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
  const auto answer = [](const Json& value) { return value.is_object() ? Json::array({value}) : value; };
  row.chosen = messages_of(answer(chosen), "chosen", place);
  row.rejected = messages_of(answer(rejected), "rejected", place);
  read_extras(object, place, row.prompt);
  if (prompt.is_array()) {
    row.prompt.messages = messages_of(prompt, "prompt", place);
    if (row.prompt.messages.empty()) fail("'prompt' is an empty list");
    const Json& asked_for = row.prompt.messages;
    const auto has_prompt = [&](const Json& list) {
      return list.size() > asked_for.size() && std::equal(asked_for.begin(), asked_for.end(), list.begin());
    };
    if (has_prompt(row.chosen) && has_prompt(row.rejected))
      fail(
          "'chosen' and 'rejected' begin with the messages of 'prompt', which would be there twice: leave 'prompt' "
          "out");
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

PreferenceRow judged_of(const SourceRow& source) {
  const auto& [object, place, unread] = source;
  if (!object.is_object() ||
      (!object.contains("completion") && (!object.contains("label") || object.contains("chosen"))) ||
      (field_of(object, "completion").is_null() && !field_of(object, "chosen").is_null()))
    return preference_of(source);
  const auto fail = [&](const std::string& what) { throw DataError(fmt::format("{}: {}", place, what)); };
  const Json &prompt = field_of(object, "prompt"), &completion = field_of(object, "completion"),
             &label = field_of(object, "label"), &turns = field_of(object, "messages");
  // ms-swift's: the last message is judged.
  const bool one_list = turns.is_array() && turns.size() > 1 && prompt.is_null() && completion.is_null();
  for (const char* name : {"prompt", "completion", "label"})
    if (!object.contains(name) && (!one_list || name == std::string_view("label")))
      fail(fmt::format("no field '{}' (a judged answer has prompt, completion and label); the object has: {}", name,
                       join(source.names(), ", ")));
  if (!one_list) require_filled(object, place, {"prompt", "completion"});
  require_filled(object, place, {"label"});
  if (!label.is_boolean() && label != 0 && label != 1)
    fail(fmt::format("'label' is {}, expected true or false", label.dump()));
  if (prompt.is_string() != completion.is_string())
    fail("one of 'prompt' and 'completion' is a text: write both as lists of {role, content}");
  PreferenceRow row;
  row.label = label == true || label == 1;
  row.texts = prompt.is_string();
  row.columns = row.texts ? kTextColumns : kListColumns;
  if (one_list) row.columns.emplace_back("messages");
  if (row.texts) {
    refuse_beside_texts(object, {prompt.get<std::string>()}, place);
    row.prompt_text = prompt.get<std::string>();
    row.chosen = completion;
    return row;
  }
  row.prompt.messages = one_list ? messages_of(turns, "messages", place) : messages_of(prompt, "prompt", place);
  row.chosen = one_list ? Json::array({row.prompt.messages.back()}) : messages_of(completion, "completion", place);
  if (one_list) row.prompt.messages.erase(row.prompt.messages.size() - 1);
  if (row.prompt.messages.empty() || row.chosen.empty()) fail("'prompt' or 'completion' is an empty list");
  read_extras(object, place, row.prompt);
  add_system(object, place, row.prompt.messages);
  if (one_list && row.chosen[0]["role"] != "assistant") fail("the last of 'messages' is no answer of the assistant");
  return row;
}

std::vector<std::string> columns_of_pairs() {
  std::vector<std::string> names = {"prompt", "chosen", "rejected", "tools", "chat_template_kwargs"};
  names.insert(names.end(), kBesideTexts.begin(), kBesideTexts.end());
  return names;
}

}  // namespace

void for_each_preference(const std::filesystem::path& path, const std::function<void(PreferenceRow)>& visit) {
  for_each_row<PreferenceRow>(path, columns_of_pairs(), kBesideTexts, visit, preference_of);
}

void for_each_judged(const std::filesystem::path& path, const std::function<void(PreferenceRow)>& visit) {
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
