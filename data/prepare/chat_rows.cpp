#include "data/prepare/chat_rows.h"

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
  return ChatModel(options.tokenizer, options.template_file, options.template_name);
}

void check_roles(const ChatTemplate& chat, const nlohmann::ordered_json& messages) {
  for (const auto& message : messages) {
    const auto& role = message.at("role").get_ref<const std::string&>();
    const std::string usual = lower(role);
    if (role != usual && (usual == "user" || usual == "assistant" || usual == "system" || usual == "tool") &&
        !chat.mentions("'" + role + "'") && !chat.mentions('"' + role + '"'))
      throw DataError(
          fmt::format("a message has the role '{}', which {} does not name: write '{}'", role, chat.name(), usual));
  }
}

std::string unwritten_message(const ChatTemplate& chat, const Conversation& conversation, const std::string& text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto content_of = [&](const nlohmann::ordered_json& message) -> std::string_view {
    const auto found = message.find("content");
    if (found == message.end() || !found->is_string()) return {};
    const std::string_view all = found->get_ref<const std::string&>();
    const size_t first = all.find_first_not_of(kSpace);
    return first == std::string_view::npos ? "" : all.substr(first, all.find_last_not_of(kSpace) + 1 - first);
  };
  size_t at = 0;
  const bool in_order = std::ranges::all_of(conversation.messages, [&](const auto& message) {
    const std::string_view content = content_of(message);
    const size_t found = text.find(content, at);
    if (found != std::string::npos) at = found + content.size();
    return found != std::string::npos;
  });
  if (in_order) return {};
  // The template may write texts in another way, such as without their reasoning: other texts show which it writes.
  Conversation other = conversation;
  const auto name = [](size_t i) { return fmt::format("trireme-message-{}.", i); };
  for (size_t i = 0; i < other.messages.size(); ++i)
    if (!content_of(other.messages[i]).empty()) other.messages[i]["content"] = name(i);
  std::string written;
  try {
    written = chat.render(other, /*add_generation_prompt=*/false);
  } catch (const DataError&) {
    return {};  // it reads the texts
  }
  for (size_t i = 0; i < other.messages.size(); ++i)
    if (const auto content = content_of(conversation.messages[i]);
        !content.empty() && written.find(name(i)) == std::string::npos)
      return fmt::format("{}: {}", conversation.messages[i].at("role").get<std::string>(), content);
  return {};
}

void warn_of_spelled_markers(const ChatRowOptions& options, const ChatModel& model) {
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
