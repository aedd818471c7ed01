#include "data/prepare/preference_pack.h"

#include "data/prepare/messages.h"
#include "data/prepare/outputs.h"
#include "data/prepare/preferences.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint8_t kChosen = 1, kRejected = 2, kOther = 3;  // in loss_mask

struct TokenisedPair {
  std::vector<int32_t> chosen, rejected;  // with the prompt
  std::optional<bool> label;              // of a judged answer, in `chosen`
  bool second = false;                    // PreferenceRow::second
  size_t prompt = 0;                      // tokens of the prompt
  bool other_prompt = false;              // alone the prompt has other tokens
  bool templated = false;                 // made of messages
  std::string place, refusal, unwritten;
  bool readable = true;  // false: `refusal` says why it is no pair
};

/// prompt, prompt and chosen, prompt and rejected
using ThreeTexts = std::array<std::string, 3>;

/// `unwritten`: unwritten_message() of the conversation with either answer.
ThreeTexts render(const ChatTemplate& chat, PreferenceRow& row, const Json& variables, std::string& unwritten) {
  Conversation conversation = row.prompt;
  conversation.variables = variables.is_null() ? Json::object() : variables;
  if (!row.prompt.variables.is_null()) conversation.variables.update(row.prompt.variables);
  for (Json* messages : {&row.prompt.messages, &row.chosen, &row.rejected}) fit_messages(chat, *messages);
  conversation.messages = row.prompt.messages;
  ThreeTexts texts;
  texts[0] = chat.render(conversation, /*add_generation_prompt=*/true);
  for (const auto& [answer, text] : {std::pair{&row.chosen, &texts[1]}, {&row.rejected, &texts[2]}}) {
    if (answer == &row.rejected && row.label) continue;
    conversation.messages = row.prompt.messages;
    for (const Json& message : *answer) {
      if (message["role"] == "assistant" && field_of(message, "weight") == 0)
        throw DataError(
            "an answer has \"weight\" 0, or a \"loss\" that is false, and here each answer has a loss: remove the key, "
            "or the row");
      conversation.messages.push_back(message);
    }
    *text = chat.render(conversation, /*add_generation_prompt=*/false);
    if (unwritten.empty()) unwritten = unwritten_message(chat, conversation, *text);
  }
  return texts;
}

TokenisedPair tokenise_pair(const ChatModel& model, PreferenceRow row, const Json& variables) {
  TokenisedPair pair;
  pair.place = row.place;
  pair.label = row.label;
  pair.second = row.second;
  pair.readable = row.problem.empty();
  pair.refusal = row.problem;
  if (!pair.readable) return pair;
  if (!row.texts) (void)model.chat();  // throws here, not as an error of this row
  pair.templated = !row.texts;
  ThreeTexts texts;
  try {
    if (row.texts)
      texts = {row.prompt_text, row.prompt_text + with_eos(model, row.chosen),
               row.label ? "" : row.prompt_text + with_eos(model, row.rejected)};
    else
      texts = render(model.chat(), row, variables, pair.unwritten);
  } catch (const DataError& error) {
    pair.refusal = fmt::format("{}: {}", row.place, error.what());
    return pair;
  }
  const auto ids = [&](const std::string& text) {
    return row.texts ? text_ids(model, text) : model.tokenizer().encode(text);
  };
  const std::vector<int32_t> prompt = ids(texts[0]);
  pair.chosen = ids(texts[1]);
  pair.prompt = common_ids(prompt, pair.chosen);
  if (!pair.label) {
    pair.rejected = ids(texts[2]);
    pair.prompt = std::min(pair.prompt, common_ids(prompt, pair.rejected));
  }
  pair.other_prompt = pair.prompt < prompt.size();
  return pair;
}

RowDocument document_of(const std::vector<int32_t>& ids, size_t prompt, uint8_t target, size_t most, bool keep_end) {
  const size_t begin = keep_end && ids.size() > most ? ids.size() - most : 0, count = std::min(ids.size(), most);
  RowDocument document;
  document.ids.assign(ids.begin() + static_cast<int64_t>(begin), ids.begin() + static_cast<int64_t>(begin + count));
  for (size_t t = begin; t < begin + count; ++t) document.mask.push_back(t >= prompt && t > begin ? target : 0);
  return document;
}

bool has_targets(const RowDocument& document) {
  return std::any_of(document.mask.begin(), document.mask.end(), [](uint8_t value) { return value != 0; });
}

void count(DroppedPairs& dropped, const std::string& first) {
  if (dropped.count++ == 0) dropped.first = first;
}

/// The documents of a pair as training has them, chosen and rejected, or of a judged answer; none: it is dropped.
std::vector<RowDocument> documents_of(const TokenisedPair& pair, const PreferencePackOptions& options,
                                      PreferencePackReport& report) {
  using Long = PreferencePackOptions::Long;
  if (!pair.refusal.empty()) {
    if (!options.skip_refused)
      throw DataError(
          fmt::format("{} (--skip-refused drops such {})", pair.refusal, options.unpaired ? "answers" : "pairs"));
    count(pair.readable ? report.refused : report.unreadable, pair.refusal);
    return {};
  }
  const auto most = static_cast<size_t>(options.max_length), row = static_cast<size_t>(options.seq_length);
  const bool keep_end = options.longer == Long::kKeepEnd;
  if (!keep_end && pair.prompt >= most) {
    count(report.long_prompts, pair.place);
    return {};
  }
  const bool cut = pair.chosen.size() > most || pair.rejected.size() > most;
  std::vector<RowDocument> documents = {
      document_of(pair.chosen, pair.prompt, pair.label.value_or(true) ? kChosen : kRejected, most, keep_end)};
  if (!pair.label) documents.push_back(document_of(pair.rejected, pair.prompt, kRejected, most, keep_end));
  if (!std::ranges::all_of(documents, has_targets)) {
    count(report.without_answer, pair.place);
    return {};
  }
  if ((cut && options.longer == Long::kDrop) || documents.front().ids.size() + documents.back().ids.size() > row) {
    count(report.too_long, pair.place);
    return {};
  }
  report.cut += cut ? 1 : 0;
  report.same += !pair.label && documents.front().ids == documents.back().ids ? 1 : 0;
  if (!pair.unwritten.empty()) count(report.unwritten, fmt::format("{}: {}", pair.place, pair.unwritten));
  if (pair.other_prompt) count(report.other_prompts, pair.place);
  return documents;
}

/// Judged answers of a split.
struct Judged {
  std::vector<RowDocument> answers;
  std::vector<size_t> prompts;  // tokens of their prompts
  /// Their completions as another prompt takes them: without the cut of the answer.
  std::vector<std::vector<int32_t>> completions;

  void move_back(Judged& other) {
    std::ranges::move(other.answers, std::back_inserter(answers));
    std::ranges::move(other.prompts, std::back_inserter(prompts));
    std::ranges::move(other.completions, std::back_inserter(completions));
  }
};

/// Rows of judged answers: within a row each prompt has the completion of the answer before, the first that of the
/// last, as TRL's KTOTrainer rotates them within a batch. best_fit() gives an answer the room of its prompt and its
/// completion twice; one for which a row has none is alone in it, where prompt and completion are its own.
RowCounts write_judged_rows(const fs::path& path, const Judged& judged, const PreferencePackOptions& options,
                            int32_t padding, int64_t& alone) {
  const std::vector<RowDocument>& answers = judged.answers;
  std::vector<size_t> lengths;
  for (size_t a = 0; a < answers.size(); ++a)
    lengths.push_back(std::min(answers[a].ids.size() + judged.prompts[a] + judged.completions[a].size(),
                               static_cast<size_t>(options.seq_length)));
  std::vector<RowDocument> others(answers.size());
  std::vector<std::vector<const RowDocument*>> rows;
  for (const auto& row : best_fit(lengths, options.seq_length, /*one_per_row=*/false)) {
    alone += row.size() == 1 ? 1 : 0;
    std::vector<const RowDocument*>& documents = rows.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      const size_t a = row[i], before = row[(i + row.size() - 1) % row.size()];
      std::vector<int32_t> ids(answers[a].ids.begin(),
                               answers[a].ids.begin() + static_cast<int64_t>(judged.prompts[a]));
      ids.insert(ids.end(), judged.completions[before].begin(), judged.completions[before].end());
      others[a] = document_of(ids, judged.prompts[a], kOther, static_cast<size_t>(options.max_length),
                              options.longer == PreferencePackOptions::Long::kKeepEnd);
      documents.insert(documents.end(), {&answers[a], &others[a]});
    }
  }
  return write_rows_of(path, rows, options.seq_length, padding);
}

}  // namespace

PreferencePackReport pack_preferences(const PreferencePackOptions& given) {
  PreferencePackOptions options = given;
  check_row_options(options);
  if (options.unpaired && options.one_per_row)
    throw ConfigError(
        "--one-per-row is for pairs: the KL term of --unpaired answers is a mean over those of a row, so let rows hold "
        "several");
  if (options.max_length == 0) options.max_length = options.seq_length / (options.unpaired ? 8 : 2);
  if (options.max_length < 2 ||
      options.max_length > (options.unpaired ? options.seq_length / 2 : options.seq_length - 1))
    throw ConfigError(
        fmt::format("--max-length {}: expected 2 or more, and room for two answers in the {} tokens of a "
                    "row",
                    options.max_length, options.seq_length));
  const ChatModel model = open_chat_model(options);
  PreferencePackReport report;
  report.vocab_size = model.tokenizer().vocab_size();
  // The rejected answers of pairs that are judged one by one go behind all others, so that few have the chosen answer
  // to their own prompt for another one.
  Judged train, valid, second_train, second_valid;
  bool templated = false;
  make_of_rows<PreferenceRow, TokenisedPair>(
      options, options.unpaired ? for_each_judged : for_each_preference,
      [&](PreferenceRow row) { return tokenise_pair(model, std::move(row), options.variables); },
      [&](TokenisedPair pair) {
        const bool held =
            in_valid_split(/*seed=*/0, pair.second ? report.pairs - 1 : report.pairs++, options.valid_fraction);
        Judged& split = pair.second ? held ? second_valid : second_train : held ? valid : train;
        const bool end = options.longer == PreferencePackOptions::Long::kKeepEnd;
        templated = templated || (pair.templated && pair.refusal.empty());
        for (RowDocument& document : documents_of(pair, options, report)) {
          if (options.unpaired) {
            const size_t cut = end ? pair.chosen.size() - document.ids.size() : 0, begin = std::max(pair.prompt, cut),
                         most = std::min(pair.chosen.size() - begin, static_cast<size_t>(options.max_length));
            split.prompts.push_back(begin - cut);
            const auto first = pair.chosen.begin() + static_cast<int64_t>(begin);
            split.completions.emplace_back(first, first + static_cast<int64_t>(most));
          }
          split.answers.push_back(std::move(document));
        }
      });
  if (templated) warn_of_template(options, model);
  train.move_back(second_train);
  valid.move_back(second_valid);
  require_left(options, options.unpaired ? "answer" : "pair", report.pairs, !train.answers.empty(),
               !valid.answers.empty(),
               fmt::format("{} that cannot be read, {} refused by the template, {} with a prompt that fills "
                           "--max-length, {} too long, {} without an answer",
                           report.unreadable.count, report.refused.count, report.long_prompts.count,
                           report.too_long.count, report.without_answer.count));
  const auto write = [&](const fs::path& path, const Judged& documents) {
    return options.unpaired ? write_judged_rows(path, documents, options, model.padding(), report.alone)
                            : write_whole_rows(path, documents.answers, /*together=*/2, options.seq_length,
                                               options.one_per_row, model.padding());
  };
  report.train = write(options.output, train);
  if (!options.valid_output.empty()) report.valid = write(options.valid_output, valid);
  const auto text = [&](const RowDocument& document, bool targets) {
    std::vector<int32_t> ids;
    for (size_t t = 0; t < document.ids.size(); ++t)
      if ((document.mask[t] != 0) == targets) ids.push_back(document.ids[t]);
    return model.tokenizer().decode(ids, true);
  };
  const auto first = [&](uint8_t target) {
    const auto found = std::ranges::find_if(
        train.answers, [&](const RowDocument& one) { return std::ranges::count(one.mask, target) > 0; });
    return found == train.answers.end() ? FirstAnswer() : FirstAnswer{text(*found, false), text(*found, true)};
  };
  report.prompt = text(train.answers[0], false);
  report.chosen = first(kChosen);
  report.rejected = first(kRejected);
  return report;
}

}  // namespace trireme
