#include "data/prepare/chat_pack.h"

#include "data/prepare/conversations.h"
#include "data/prepare/outputs.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trireme {
namespace {

namespace fs = std::filesystem;

constexpr double kMostCopies = 1000;

struct Tokenised {
  RowDocument document;   // mask 1: the token is a target
  std::string place;      // of a conversation
  std::string refusal;    // of the template; empty: none
  std::string unwritten;  // unwritten_message()
  bool readable = true;   // false: `refusal` says why it is no conversation
  ChatSource source = ChatSource::kConversation;
  size_t input = 0;  // number of the file
};

/// A prompt and its completion that are texts.
RowDocument tokenise_texts(const ChatModel& model, const ConversationRow& row) {
  RowDocument document;
  document.ids = text_ids(model, row.prompt_text + with_eos(model, row.completion_text));
  const size_t prompt = common_ids(text_ids(model, row.prompt_text), document.ids);
  document.mask.assign(document.ids.size(), 1);
  std::fill_n(document.mask.begin(), std::max<size_t>(1, prompt), 0);
  return document;
}

/// Takes the loss from all answers but the last.
void keep_last_answer(nlohmann::ordered_json& messages) {
  bool last = true;
  for (size_t i = messages.size(); i-- > 0;) {
    nlohmann::ordered_json& message = messages[i];
    if (message["role"] != "assistant") continue;
    if (!last) message["weight"] = 0;
    last = false;
  }
}

/// The variables of the conversation win over those of the options.
Tokenised tokenise_chat(const ChatModel& model, ConversationRow row, const ChatPackOptions& options) {
  Tokenised result;
  result.input = row.input;
  result.place = row.place;
  if (!row.problem.empty()) {
    result.readable = false;
    result.refusal = row.problem;
    return result;
  }
  if (!row.ids.empty()) {
    const int64_t known = model.tokenizer().vocab_size();
    const auto beyond = std::ranges::find_if(row.ids, [&](int32_t id) { return id >= known; });
    if (beyond != row.ids.end())
      result.refusal =
          fmt::format("{}: input_ids has id {}, and the tokenizer has {}: give --model whose tokenizer made it",
                      row.place, *beyond, known);
    else if (options.last_only)
      result.refusal = row.place + ": ids have no messages, of which --loss last could take the last: leave it out";
    result.source = ChatSource::kIds;
    result.document = {std::move(row.ids), std::move(row.mask)};
    return result;
  }
  if (!row.texts) (void)model.chat();  // throws here, not as an error of this row
  ChatText text;
  try {
    if (row.texts) {
      result.source = ChatSource::kTexts;
      result.document = tokenise_texts(model, row);
      return result;
    }
    if (options.last_only) keep_last_answer(row.conversation.messages);
    nlohmann::ordered_json variables = options.variables;
    if (!row.conversation.variables.is_null()) variables.update(row.conversation.variables);
    row.conversation.variables = std::move(variables);
    fit_messages(model.chat(), row.conversation.messages);
    text = model.chat().training_text(row.conversation);
    result.unwritten = unwritten_message(model.chat(), row.conversation, text.text);
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
  result.document.ids = model.tokenizer().encode(text.text, marks);
  mask.assign(result.document.ids.size(), 0);
  // From the token of the first byte to the token of the last; transformers' return_assistant_tokens_mask takes the
  // first tokens of the first and last characters.
  for (size_t i = 0; i < marks.tokens.size(); i += 2)
    for (size_t t = marks.tokens[i]; t <= marks.tokens[i + 1] && t < mask.size(); ++t) mask[t] = 1;
  if (!mask.empty()) mask[0] = 0;  // nothing predicts the first token
  return result;
}

void check_weights(const ChatPackOptions& options) {
  if (options.weights.empty()) return;
  if (options.weights.size() != options.inputs.size())
    throw ConfigError(fmt::format("--weight: {} for {}: give one for each --input", options.weights.size(),
                                  counted(options.inputs.size(), "file")));
  for (const double weight : options.weights)
    if (!(weight > 0 && weight <= kMostCopies))
      throw ConfigError(fmt::format("--weight {}: expected a number above 0, at most {}", weight, kMostCopies));
}

/// How often a conversation is in the training rows.
int64_t copies_of(const ChatPackOptions& options, size_t input, int64_t number) {
  if (options.weights.empty()) return 1;
  const double weight = options.weights[input], whole = std::floor(weight);
  return static_cast<int64_t>(whole) + (is_drawn("mixing", /*seed=*/0, number, weight - whole) ? 1 : 0);
}

}  // namespace

ChatPackReport pack_conversations(const ChatPackOptions& options) {
  check_row_options(options);
  check_weights(options);
  const ChatModel model = open_chat_model(options);
  ChatPackReport report;
  if (model.has_chat()) report.template_name = model.chat().name();
  report.vocab_size = model.tokenizer().vocab_size();
  report.by_generation_blocks = model.has_chat() && model.chat().has_generation_blocks();
  report.inputs.resize(options.inputs.size());
  std::vector<RowDocument> train, valid;
  bool templated = false;
  const auto keep = [&](Tokenised made, int64_t number) {
    if (!made.refusal.empty()) {
      if (!options.skip_refused) throw DataError(made.refusal + " (--skip-refused drops such conversations)");
      int64_t& count = made.readable ? report.refused : report.unreadable;
      if (count++ == 0) (made.readable ? report.first_refusal : report.first_unreadable) = made.refusal;
      return;
    }
    templated = templated || made.source == ChatSource::kConversation;
    if (!made.unwritten.empty() && report.unwritten++ == 0)
      report.first_unwritten = fmt::format("{}: {}", made.place, made.unwritten);
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
    const int64_t targets = std::count(document.mask.begin(), document.mask.end(), 1);
    if (targets == 0) {
      if (report.untrained++ == 0) report.first_untrained = made.place;
      return;
    }
    const int64_t copies = copies_of(options, made.input, number);
    if (copies == 0) return;
    if (in_valid_split(/*seed=*/0, number, options.valid_fraction)) return valid.push_back(std::move(document));
    RowCounts& input = report.inputs[made.input];
    input.documents += copies;
    input.tokens += copies * static_cast<int64_t>(document.ids.size());
    input.targets += copies * targets;
    report.sources.insert(made.source);
    train.insert(train.end(), static_cast<size_t>(copies), document);
  };
  size_t inputs = 0;
  make_of_rows<ConversationRow, Tokenised>(
      options,
      [&](const fs::path& path, const auto& visit) {
        for_each_conversation(path, options.field, [&, input = inputs++](ConversationRow row) {
          row.input = input;
          visit(std::move(row));
        });
      },
      [&](ConversationRow row) { return tokenise_chat(model, std::move(row), options); },
      [&](Tokenised made) { keep(std::move(made), report.conversations++); });
  if (templated) warn_of_template(options, model);
  require_left(options, "conversation", report.conversations, !train.empty(), !valid.empty(),
               fmt::format("{} that cannot be read, {} refused by the template, {} too long, {} without an answer of "
                           "the assistant in the {} tokens of a row{}{}",
                           report.unreadable, report.refused, report.dropped_long, report.untrained, options.seq_length,
                           report.untrained > 0 ? ", the first: " + report.first_untrained : "",
                           report.unwritten > 0 ? "; " + report.first_unwritten : ""));
  const auto write = [&](const fs::path& path, const std::vector<RowDocument>& chats) {
    return write_whole_rows(path, chats, /*together=*/1, options.seq_length, options.one_per_row, model.padding());
  };
  report.train = write(options.output, train);
  if (!options.valid_output.empty()) report.valid = write(options.valid_output, valid);
  const RowDocument& first = train.front();
  report.sample = model.tokenizer().decode(first.ids, true);
  for (size_t t = 0; t < first.ids.size(); ++t) {
    if (first.mask[t] == 0) continue;
    size_t end = t;
    while (end < first.ids.size() && first.mask[end] == 1) ++end;
    report.sample_targets.push_back(model.tokenizer().decode(std::span(first.ids).subspan(t, end - t), true));
    t = end;
  }
  return report;
}

}  // namespace trireme
