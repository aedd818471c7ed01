#include "data/prepare/chat_rows.h"

#include "data/prepare/messages.h"
#include "data/prepare/outputs.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>

namespace trireme {

namespace fs = std::filesystem;

std::vector<std::vector<size_t>> best_fit(const std::vector<size_t>& lengths, int64_t seq_length, bool one_per_row) {
  std::vector<std::vector<size_t>> rows;
  std::vector<size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (!one_per_row)
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  std::multimap<size_t, size_t> room;  // free tokens -> row
  for (const size_t group : order) {
    const size_t length = lengths[group];
    const auto found = one_per_row ? room.end() : room.lower_bound(length);
    size_t row = rows.size(), free = static_cast<size_t>(seq_length);
    if (found == room.end()) {
      rows.emplace_back();
    } else {
      std::tie(free, row) = *found;
      room.erase(found);
    }
    rows[row].push_back(group);
    if (free > length) room.emplace(free - length, row);
  }
  for (auto& row : rows) std::sort(row.begin(), row.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

void check_row_options(const ChatRowOptions& options) {
  if (options.seq_length < 2 || options.seq_length > (1 << 24))
    throw ConfigError(fmt::format("--seq-length {}: expected 2 to {}", options.seq_length, 1 << 24));
  check_row_outputs(options.inputs, options.output, options.valid_output, options.valid_fraction);
}

void require_left(const ChatRowOptions& options, const std::string& what, int64_t read, bool train, bool valid,
                  const std::string& dropped) {
  if (read == 0) throw DataError(fmt::format("{}: there is no {} in it", options.inputs.front().string(), what));
  for (const auto& [has, path] : {std::pair{train, &options.output}, {valid, &options.valid_output}}) {
    if (has || path->empty()) continue;
    const std::string why =
        train || valid ? fmt::format("--valid-fraction {} draws none or all of them", options.valid_fraction) : dropped;
    throw DataError(fmt::format("{}: no {} is left of {}: {}", path->string(), what, read, why));
  }
}

ChatModel open_chat_model(const ChatRowOptions& options) {
  ChatModel model(options.tokenizer, options.template_file, options.template_name);
  if (model.has_chat()) model.chat().check_variables(options.variables);
  return model;
}

namespace {

using Json = nlohmann::ordered_json;

bool quotes(const ChatTemplate& chat, const std::string& word) {
  return chat.mentions("'" + word + "'") || chat.mentions('"' + word + '"');
}

void fit_parts(const ChatTemplate& chat, Json& content) {
  std::vector<std::string> texts;
  for (const Json& part : content) {
    const Json type = part.is_object() ? field_of(part, "type") : Json();
    const Json text = part.is_object() ? field_of(part, "text") : Json();  // texts alone are left as they are
    if (type.is_string() && type != "text") {
      const auto& name = type.get_ref<const std::string&>();
      const bool medium = std::ranges::any_of(std::vector{"image", "video", "audio", "file"},
                                              [&](const char* each) { return name.find(each) != std::string::npos; });
      if (medium || (!text.is_string() && !quotes(chat, name)))
        throw DataError(
            fmt::format("a part of \"content\" has the type '{}', which {}: drop such rows, or write them as texts",
                        name, medium ? "no text model reads" : chat.name() + " does not name"));
    }
    if (text.is_string()) texts.push_back(text);
  }
  if (!texts.empty() && texts.size() == content.size() && !quotes(chat, "text") && !chat.mentions(".text"))
    content = join(texts, "\n");
}

/// The text under `key` without white space at its ends.
std::string_view trimmed_text(const Json& message, const char* key) {
  const auto found = message.find(key);
  return found == message.end() || !found->is_string() ? "" : trimmed(found->get_ref<const std::string&>());
}

}  // namespace

void fit_messages(const ChatTemplate& chat, Json& messages) {
  for (Json& message : messages) {
    const auto& role = message.at("role").get_ref<const std::string&>();
    const std::string usual = lower(role);
    if (role != usual && (usual == "user" || usual == "assistant" || usual == "system" || usual == "tool") &&
        !quotes(chat, role))
      throw DataError(
          fmt::format("a message has the role '{}', which {} does not name: write '{}'", role, chat.name(), usual));
    if (field_of(message, "content").is_array()) fit_parts(chat, message["content"]);
  }
}

std::string unwritten_message(const ChatTemplate& chat, const Conversation& conversation, const std::string& text) {
  const Json& messages = conversation.messages;
  size_t at = 0;
  const bool in_order = std::ranges::all_of(messages, [&](const Json& message) {
    const std::string_view content = trimmed_text(message, "content");
    const size_t found = text.find(content, at);
    if (found != std::string::npos) at = found + content.size();
    return found != std::string::npos;
  });
  const bool calls = std::ranges::any_of(messages, [](const Json& message) { return message.contains("tool_calls"); });
  size_t last = messages.size();  // message, of the reasoning
  const char* reasoning = nullptr;
  while (last > 0 && messages[last - 1]["role"] != "assistant") --last;
  for (const char* key : {"reasoning_content", "thinking", "reasoning"})
    if (reasoning == nullptr && last > 0 && text.find(trimmed_text(messages[last - 1], key)) == std::string::npos)
      reasoning = key;
  if (in_order && !calls && reasoning == nullptr && conversation.tools.empty()) return {};
  // The template may write texts in another way, such as without their reasoning: other texts show which it writes.
  Conversation other = conversation;
  std::vector<std::string> names;
  std::vector<Json*> marked;
  const auto mark = [&](Json& value) {
    const std::string was = value;
    value = names.emplace_back(fmt::format("trireme{}mark", names.size()));
    marked.push_back(&value);
    return was;
  };
  const auto named = [](Json& object) {
    Json& function = field_of(object, "function").is_object() ? object["function"] : object;
    return field_of(function, "name").is_string() ? &function["name"] : nullptr;
  };
  std::vector<std::string> called, said, offered;
  std::string quoted;
  const std::string nothing = "the template writes nothing of ";
  for (Json& message : other.messages)
    if (message.contains("tool_calls"))
      for (Json& call : message["tool_calls"]) {
        const Json& function = call.contains("function") ? call["function"] : call;
        if (const std::string_view arguments = trimmed_text(function, "arguments");
            arguments.starts_with('{') && text.find(function["arguments"].dump()) != std::string::npos)
          quoted = fmt::format("the template quotes arguments that are a text, not an object: {}", arguments);
        if (Json* name = named(call)) called.push_back(mark(*name));
      }
  for (Json& message : other.messages)
    if (const std::string content(trimmed_text(message, "content")); !in_order && !content.empty()) {
      (void)mark(message["content"]);
      said.push_back(fmt::format("{}: {}", message["role"].get<std::string>(), content));
    }
  if (reasoning != nullptr) said.push_back("the assistant's reasoning: " + mark(other.messages[last - 1][reasoning]));
  for (Json& tool : other.tools)
    if (Json* name = named(tool)) offered.push_back(mark(*name));
  const auto render = [&]() -> std::string {
    try {
      return chat.render(other, /*add_generation_prompt=*/false);
    } catch (const DataError&) {
      return {};  // it reads the texts
    }
  };
  const std::string written = render();
  if (written.empty()) return quoted;
  // Filters, such as upper, write a text in another way. One that does so with 16 texts does with the others.
  int renders = 16;
  const auto is_there = [&](size_t i) {
    if (written.find(names[i]) != std::string::npos || renders-- <= 0) return true;
    *marked[i] = "another";
    const bool is_read = render() != written;
    *marked[i] = names[i];
    return is_read;
  };
  for (size_t i = 0; i < called.size(); ++i)
    if (!is_there(i))
      throw DataError(
          fmt::format("{} writes nothing of a call of '{}': give --template one that writes tool calls, or drop such "
                      "rows",
                      chat.name(), called[i]));
  for (size_t i = 0; i < said.size(); ++i)
    if (!is_there(called.size() + i)) return nothing + said[i];
  for (size_t i = called.size() + said.size(); i < names.size(); ++i)
    if (is_there(i)) return quoted;
  return offered.empty() ? quoted : nothing + "tools: " + offered[0];
}

void warn_of_template(const ChatRowOptions& options, const ChatModel& model) {
  if (const std::string end = model.unlisted_end(); !end.empty())
    log_warn(fmt::format(
        "the template ends an answer with {0}, which is no EOS of the tokenizer, config.json or generation_config.json "
        "of {1}: transformers and vLLM do not stop there. Make it one before the training: `trireme model "
        "resize-vocab --model {1} --eos-token '{0}' --output DIRECTORY`",
        end, options.tokenizer.string()));
  const std::vector<std::string> markers = model.spelled_markers();
  if (markers.empty()) return;
  const std::string which = fmt::format("the tokenizer of {} has no token for {} of the template {}",
                                        options.tokenizer.string(), join(markers, ", "), model.chat().name());
  // Zephyr's <|user|> is such a text, with EOS at the end of an answer.
  if (model.ends_turns()) return log_info(which + ": each becomes several tokens, as ordinary text");
  log_warn(which +
           ": each becomes several tokens, as ordinary text, and no special token ends an answer. Add them to the "
           "model with `trireme model resize-vocab --add-token`, or give --template a file that the model's own tokens "
           "fit");
}

std::string with_eos(const ChatModel& model, std::string text) {
  const std::string eos = model.special("eos_token");
  if (eos.empty()) throw DataError("the tokenizer has no EOS token, with which answers that are plain texts end");
  if (!text.ends_with(eos)) text += eos;
  return text;
}

std::vector<int32_t> text_ids(const ChatModel& model, const std::string& text) {
  std::vector<int32_t> all = model.tokenizer().leading();
  const std::vector<int32_t> of_text = model.tokenizer().encode(text);
  all.insert(all.end(), of_text.begin(), of_text.end());
  return all;
}

size_t common_ids(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

RowCounts write_whole_rows(const fs::path& path, const std::vector<RowDocument>& documents, size_t together,
                           int64_t seq_length, bool one_per_row, int32_t padding) {
  std::vector<size_t> lengths(documents.size() / together);
  for (size_t d = 0; d < documents.size(); ++d) lengths[d / together] += documents[d].ids.size();
  std::vector<std::vector<const RowDocument*>> rows;
  for (const auto& groups : best_fit(lengths, seq_length, one_per_row)) {
    std::vector<const RowDocument*>& row = rows.emplace_back();
    for (const size_t group : groups)
      for (size_t d = group * together; d < (group + 1) * together; ++d) row.push_back(&documents[d]);
  }
  return write_rows_of(path, rows, seq_length, padding);
}

RowCounts write_rows_of(const fs::path& path, const std::vector<std::vector<const RowDocument*>>& rows,
                        int64_t seq_length, int32_t padding) {
  RowCounts counts;
  counts.rows = static_cast<int64_t>(rows.size());
  for (const auto& row : rows)
    for (const RowDocument* document : row) {
      ++counts.documents;
      counts.tokens += static_cast<int64_t>(document->ids.size());
      counts.targets += std::count_if(document->mask.begin(), document->mask.end(),
                                      [](uint8_t value) { return value == 1 || value == 2; });
    }
  counts.padding = counts.rows * seq_length - counts.tokens;
  write_masked_rows(path, seq_length, counts.rows, [&](int64_t index) {
    PackedRecord record;
    for (const RowDocument* document : rows[static_cast<size_t>(index)]) {
      record.seq_start_id.push_back(static_cast<int32_t>(record.input_ids.size()));
      record.input_ids.insert(record.input_ids.end(), document->ids.begin(), document->ids.end());
      record.loss_mask.insert(record.loss_mask.end(), document->mask.begin(), document->mask.end());
    }
    const auto length = static_cast<size_t>(seq_length);
    if (record.input_ids.size() < length) record.seq_start_id.push_back(static_cast<int32_t>(record.input_ids.size()));
    record.input_ids.resize(length, padding);
    record.loss_mask.resize(length, 0);
    return record;
  });
  return counts;
}

}  // namespace trireme
