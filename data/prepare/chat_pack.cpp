#include "data/prepare/chat_pack.h"

#include "data/prepare/conversations.h"
#include "data/prepare/outputs.h"
#include "data/prepare/progress.h"
#include "data/tokenizer/tokenizer.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

namespace trireme {
namespace {

namespace fs = std::filesystem;

struct Tokenised {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;  // 1: the token is a target
  std::string refusal;        // of the template; empty: none
  bool readable = true;       // false: `refusal` says why it is no conversation
};

/// The directory whose tokenizer_config.json belongs to a tokenizer.
fs::path model_directory(const fs::path& tokenizer) {
  std::error_code error;
  return fs::is_directory(tokenizer, error) ? tokenizer : tokenizer.parent_path();
}

/// sentencepiece's file does not hold the tokens that a model added: those of tokenizer_config.json, added_tokens.json
/// and the named ones. A tokenizer.json has them.
void add_model_tokens(Tokenizer& tokenizer, const fs::path& directory) {
  if (tokenizer.kind() != "sentencepiece") return;
  std::map<int64_t, std::string> tokens;
  const auto read = [&](const char* name) { return read_json_if_there(directory / name, ExitCode::kData); };
  const auto added = read("added_tokens.json");
  for (const auto& [text, id] : added.items())
    if (added.is_object() && id.is_number_integer() && !text.empty()) tokens[id.get<int64_t>()] = text;
  const auto decoder = member(read("tokenizer_config.json"), "added_tokens_decoder");
  for (const auto& [key, entry] : decoder.items()) {
    int64_t id = -1;
    std::from_chars(key.data(), key.data() + key.size(), id);
    const auto content = member(entry, "content");
    if (id >= 0 && content.is_string() && !content.get<std::string>().empty()) tokens[id] = content.get<std::string>();
  }
  for (const auto& [id, text] : tokens)
    if (const int64_t ours = tokenizer.add_special(text); ours != id)
      throw DataError(fmt::format(
          "{}: the token '{}' has the id {}, but the {} pieces of the tokenizer and the tokens before it give it {}",
          directory.string(), text, id, tokenizer.base_vocab_size(), ours));
  for (const auto& [key, text] : named_tokens(directory))
    if (!text.empty()) tokenizer.add_special(text);
  for (const auto id : {tokenizer.bos_id(), tokenizer.eos_id()})
    if (id) tokenizer.add_special(tokenizer.decode(std::vector<int32_t>{*id}, true));
}

ChatTemplate open_template(const Tokenizer& tokenizer, const ChatPackOptions& options) {
  const fs::path directory = model_directory(options.tokenizer);
  std::map<std::string, std::string> variables;
  for (const auto& [name, id] : {std::pair{"bos_token", tokenizer.bos_id()}, {"eos_token", tokenizer.eos_id()}})
    if (id) variables[name] = tokenizer.decode(std::vector<int32_t>{*id}, true);
  for (const auto& [name, text] : named_tokens(directory)) variables[name] = text;
  if (options.template_file.empty()) return ChatTemplate::open(directory, options.template_name, variables);
  return {read_text_file(options.template_file, ExitCode::kData), options.template_file.string(), variables};
}

/// `variables`: of the template; those of the conversation win.
Tokenised tokenise_chat(const Tokenizer& tokenizer, const ChatTemplate& chat, ConversationRow row,
                        nlohmann::ordered_json variables) {
  Tokenised result;
  if (!row.problem.empty()) {
    result.readable = false;
    result.refusal = row.problem;
    return result;
  }
  if (!row.conversation.variables.is_null()) variables.update(row.conversation.variables);
  row.conversation.variables = std::move(variables);
  ChatText text;
  try {
    text = chat.training_text(row.conversation);
  } catch (const DataError& error) {
    result.refusal = fmt::format("{}: {}", row.place, error.what());
    return result;
  }
  TextMarks marks;
  for (const auto& [begin, end] : text.assistant) {
    marks.places.push_back(begin);
    marks.places.push_back(end - 1);
  }
  result.ids = tokenizer.encode(text.text, marks);
  result.mask.assign(result.ids.size(), 0);
  // From the token of the first byte to the token of the last, as transformers' return_assistant_tokens_mask.
  for (size_t i = 0; i < marks.tokens.size(); i += 2)
    for (size_t t = marks.tokens[i]; t <= marks.tokens[i + 1] && t < result.mask.size(); ++t) result.mask[t] = 1;
  if (!result.mask.empty()) result.mask[0] = 0;  // nothing predicts the first token
  return result;
}

/// The rows of one split: the conversations of each, in order.
std::vector<std::vector<size_t>> best_fit(const std::vector<Tokenised>& chats, int64_t seq_length, bool one_per_row) {
  std::vector<std::vector<size_t>> rows;
  std::vector<size_t> order(chats.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (!one_per_row)
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return chats[a].ids.size() > chats[b].ids.size(); });
  std::multimap<size_t, size_t> room;  // free tokens -> row
  for (const size_t chat : order) {
    const size_t length = chats[chat].ids.size();
    const auto found = one_per_row ? room.end() : room.lower_bound(length);
    size_t row = rows.size(), free = static_cast<size_t>(seq_length);
    if (found == room.end()) {
      rows.emplace_back();
    } else {
      std::tie(free, row) = *found;
      room.erase(found);
    }
    rows[row].push_back(chat);
    if (free > length) room.emplace(free - length, row);
  }
  for (auto& row : rows) std::sort(row.begin(), row.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

void write_split(const fs::path& path, const std::vector<Tokenised>& chats, const ChatPackOptions& options,
                 int32_t padding, ChatSplit& split) {
  const auto rows = best_fit(chats, options.seq_length, options.one_per_row);
  split.conversations = static_cast<int64_t>(chats.size());
  split.rows = static_cast<int64_t>(rows.size());
  for (const Tokenised& chat : chats) {
    split.tokens += static_cast<int64_t>(chat.ids.size());
    split.targets += std::accumulate(chat.mask.begin(), chat.mask.end(), int64_t{0});
  }
  split.padding = split.rows * options.seq_length - split.tokens;
  write_masked_rows(path, options.seq_length, split.rows, [&](int64_t index) {
    PackedRecord record;
    for (const size_t chat : rows[static_cast<size_t>(index)]) {
      record.seq_start_id.push_back(static_cast<int32_t>(record.input_ids.size()));
      record.input_ids.insert(record.input_ids.end(), chats[chat].ids.begin(), chats[chat].ids.end());
      record.loss_mask.insert(record.loss_mask.end(), chats[chat].mask.begin(), chats[chat].mask.end());
    }
    const auto length = static_cast<size_t>(options.seq_length);
    if (record.input_ids.size() < length) record.seq_start_id.push_back(static_cast<int32_t>(record.input_ids.size()));
    record.input_ids.resize(length, padding);
    record.loss_mask.resize(length, 0);
    return record;
  });
}

void check_chat_options(const ChatPackOptions& options) {
  if (options.seq_length < 2 || options.seq_length > (1 << 24))
    throw ConfigError(fmt::format("--seq-length {}: expected 2 to {}", options.seq_length, 1 << 24));
  check_row_outputs(options.output, options.valid_output, options.valid_fraction);
}

}  // namespace

ChatPackReport pack_conversations(const ChatPackOptions& options) {
  check_chat_options(options);
  Tokenizer tokenizer(options.tokenizer);
  add_model_tokens(tokenizer, model_directory(options.tokenizer));
  const ChatTemplate chat = open_template(tokenizer, options);
  ChatPackReport report;
  report.template_name = chat.name();
  report.vocab_size = tokenizer.vocab_size();
  report.by_generation_blocks = chat.has_generation_blocks();
  std::vector<Tokenised> train, valid;
  std::vector<ConversationRow> batch;
  const auto keep = [&](Tokenised made, int64_t number) {
    if (!made.refusal.empty()) {
      if (!options.skip_refused) throw DataError(made.refusal + " (--skip-refused drops such conversations)");
      int64_t& count = made.readable ? report.refused : report.unreadable;
      if (count++ == 0) (made.readable ? report.first_refusal : report.first_unreadable) = made.refusal;
      return;
    }
    const auto length = static_cast<size_t>(options.seq_length);
    if (made.ids.size() > length) {
      if (options.drop_long) {
        ++report.dropped_long;
        return;
      }
      ++report.cut;
      made.ids.resize(length);
      made.mask.resize(length);
    }
    if (std::find(made.mask.begin(), made.mask.end(), 1) == made.mask.end())
      ++report.untrained;
    else
      (in_valid_split(0, number, options.valid_fraction) ? valid : train).push_back(std::move(made));
  };
  const auto flush = [&] {
    std::vector<Tokenised> made(batch.size());
    parallel_for(batch.size(), options.threads,
                 [&](size_t i) { made[i] = tokenise_chat(tokenizer, chat, std::move(batch[i]), options.variables); });
    for (Tokenised& each : made) keep(std::move(each), report.conversations++);
    batch.clear();
  };
  Progress progress("rendering", total_size(options.inputs), "MB", 1e6);
  double before = 0;
  for (const fs::path& path : options.inputs) {
    try {
      for_each_conversation(path, options.field, [&](ConversationRow row) {
        progress.update(before + row.bytes_done);
        batch.push_back(std::move(row));
        if (batch.size() >= 512) flush();
      });
    } catch (const Error&) {
      flush();  // an error of an earlier conversation is the first
      throw;
    }
    flush();
    before += static_cast<double>(fs::file_size(path));
  }
  progress.finish();
  for (const auto& [chats, path] : {std::pair{&train, &options.output}, {&valid, &options.valid_output}})
    if (chats->empty() && !path->empty())
      throw DataError(
          fmt::format("{}: no conversation is left of {}: {} that cannot be read, {} refused by the template, {} too "
                      "long, {} without an answer of the assistant",
                      path->string(), report.conversations, report.unreadable, report.refused, report.dropped_long,
                      report.untrained));
  const int32_t padding = tokenizer.pad_id().value_or(tokenizer.eos_id().value_or(0));
  write_split(options.output, train, options, padding, report.train);
  if (!options.valid_output.empty()) write_split(options.valid_output, valid, options, padding, report.valid);
  const Tokenised& first = train.front();
  report.sample = tokenizer.decode(first.ids, true);
  for (size_t t = 0; t < first.ids.size(); ++t) {
    if (first.mask[t] == 0) continue;
    size_t end = t;
    while (end < first.ids.size() && first.mask[end] == 1) ++end;
    report.sample_targets.push_back(tokenizer.decode(std::span(first.ids).subspan(t, end - t), true));
    t = end;
  }
  return report;
}

}  // namespace trireme
