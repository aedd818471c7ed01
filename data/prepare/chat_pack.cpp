#include "data/prepare/chat_pack.h"

#include "data/prepare/conversations.h"
#include "data/prepare/outputs.h"
#include "trireme/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace trireme {
namespace {

namespace fs = std::filesystem;

struct Tokenised {
  RowDocument document;  // mask 1: the token is a target
  std::string refusal;   // of the template; empty: none
  bool readable = true;  // false: `refusal` says why it is no conversation
};

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
  std::vector<uint8_t>& mask = result.document.mask;
  result.document.ids = tokenizer.encode(text.text, marks);
  mask.assign(result.document.ids.size(), 0);
  // From the token of the first byte to the token of the last, as transformers' return_assistant_tokens_mask.
  for (size_t i = 0; i < marks.tokens.size(); i += 2)
    for (size_t t = marks.tokens[i]; t <= marks.tokens[i + 1] && t < mask.size(); ++t) mask[t] = 1;
  if (!mask.empty()) mask[0] = 0;  // nothing predicts the first token
  return result;
}

}  // namespace

ChatPackReport pack_conversations(const ChatPackOptions& options) {
  check_row_options(options);
  const ChatModel model(options);
  ChatPackReport report;
  report.template_name = model.chat().name();
  report.vocab_size = model.tokenizer.vocab_size();
  report.by_generation_blocks = model.chat().has_generation_blocks();
  std::vector<RowDocument> train, valid;
  const auto keep = [&](Tokenised made, int64_t number) {
    if (!made.refusal.empty()) {
      if (!options.skip_refused) throw DataError(made.refusal + " (--skip-refused drops such conversations)");
      int64_t& count = made.readable ? report.refused : report.unreadable;
      if (count++ == 0) (made.readable ? report.first_refusal : report.first_unreadable) = made.refusal;
      return;
    }
    const auto length = static_cast<size_t>(options.seq_length);
    RowDocument& document = made.document;
    if (document.ids.size() > length) {
      if (options.drop_long) {
        ++report.dropped_long;
        return;
      }
      ++report.cut;
      document.ids.resize(length);
      document.mask.resize(length);
    }
    if (std::find(document.mask.begin(), document.mask.end(), 1) == document.mask.end())
      ++report.untrained;
    else
      (in_valid_split(/*seed=*/0, number, options.valid_fraction) ? valid : train).push_back(std::move(document));
  };
  make_of_rows<ConversationRow, Tokenised>(
      options, [&](const fs::path& path, const auto& visit) { for_each_conversation(path, options.field, visit); },
      [&](ConversationRow row) {
        return tokenise_chat(model.tokenizer, model.chat(), std::move(row), options.variables);
      },
      [&](Tokenised made) { keep(std::move(made), report.conversations++); });
  for (const auto& [chats, path] : {std::pair{&train, &options.output}, {&valid, &options.valid_output}})
    if (chats->empty() && !path->empty())
      throw DataError(
          fmt::format("{}: no conversation is left of {}: {} that cannot be read, {} refused by the template, {} too "
                      "long, {} without an answer of the assistant",
                      path->string(), report.conversations, report.unreadable, report.refused, report.dropped_long,
                      report.untrained));
  const auto write = [&](const fs::path& path, const std::vector<RowDocument>& chats) {
    return write_whole_rows(path, chats, /*together=*/1, options.seq_length, options.one_per_row, model.padding());
  };
  report.train = write(options.output, train);
  if (!options.valid_output.empty()) report.valid = write(options.valid_output, valid);
  const RowDocument& first = train.front();
  report.sample = model.tokenizer.decode(first.ids, true);
  for (size_t t = 0; t < first.ids.size(); ++t) {
    if (first.mask[t] == 0) continue;
    size_t end = t;
    while (end < first.ids.size() && first.mask[end] == 1) ++end;
    report.sample_targets.push_back(model.tokenizer.decode(std::span(first.ids).subspan(t, end - t), true));
    t = end;
  }
  return report;
}

}  // namespace trireme
