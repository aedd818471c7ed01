#include "data/prepare/preference_pack.h"

#include "data/prepare/conversations.h"
#include "data/prepare/outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace trireme {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint8_t kChosen = 1, kRejected = 2;  // in loss_mask

struct TokenisedPair {
  std::vector<int32_t> chosen, rejected;  // with the prompt
  size_t prompt = 0;                      // tokens of the prompt
  bool other_prompt = false;              // alone the prompt has other tokens
  std::string place, refusal;
  bool readable = true;  // false: `refusal` says why it is no pair
};

/// prompt, prompt and chosen, prompt and rejected
using ThreeTexts = std::array<std::string, 3>;

ThreeTexts render(const ChatTemplate& chat, const PreferenceRow& row, const Json& variables) {
  Conversation conversation = row.prompt;
  conversation.variables = variables.is_null() ? Json::object() : variables;
  if (!row.prompt.variables.is_null()) conversation.variables.update(row.prompt.variables);
  ThreeTexts texts;
  texts[0] = chat.render(conversation, /*add_generation_prompt=*/true);
  for (const auto& [answer, text] : {std::pair{&row.chosen, &texts[1]}, {&row.rejected, &texts[2]}}) {
    conversation.messages = row.prompt.messages;
    for (const Json& message : *answer) conversation.messages.push_back(message);
    *text = chat.render(conversation, /*add_generation_prompt=*/false);
  }
  return texts;
}

TokenisedPair tokenise_pair(const ChatModel& model, PreferenceRow row, const Json& variables) {
  TokenisedPair pair;
  pair.place = row.place;
  pair.readable = row.problem.empty();
  pair.refusal = row.problem;
  if (!pair.readable) return pair;
  ThreeTexts texts;
  try {
    if (row.texts)
      texts = {row.prompt_text, row.prompt_text + with_eos(model, row.chosen),
               row.prompt_text + with_eos(model, row.rejected)};
    else
      texts = render(model.chat(), row, variables);
  } catch (const DataError& error) {
    pair.refusal = fmt::format("{}: {}", row.place, error.what());
    return pair;
  }
  const auto ids = [&](const std::string& text) {
    return row.texts ? text_ids(model, text) : model.tokenizer().encode(text);
  };
  const std::vector<int32_t> prompt = ids(texts[0]);
  pair.chosen = ids(texts[1]);
  pair.rejected = ids(texts[2]);
  pair.prompt = std::min(common_ids(prompt, pair.chosen), common_ids(prompt, pair.rejected));
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

/// The documents of a pair as training has them, chosen and rejected; none: it is dropped.
std::vector<RowDocument> documents_of(const TokenisedPair& pair, const PreferencePackOptions& options,
                                      PreferencePackReport& report) {
  using Long = PreferencePackOptions::Long;
  if (!pair.refusal.empty()) {
    if (!options.skip_refused) throw DataError(pair.refusal + " (--skip-refused drops such pairs)");
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
  std::vector<RowDocument> documents = {document_of(pair.chosen, pair.prompt, kChosen, most, keep_end),
                                        document_of(pair.rejected, pair.prompt, kRejected, most, keep_end)};
  if (!has_targets(documents[0]) || !has_targets(documents[1])) {
    count(report.without_answer, pair.place);
    return {};
  }
  if ((cut && options.longer == Long::kDrop) || documents[0].ids.size() + documents[1].ids.size() > row) {
    count(report.too_long, pair.place);
    return {};
  }
  report.cut += cut ? 1 : 0;
  if (pair.other_prompt) count(report.other_prompts, pair.place);
  return documents;
}

}  // namespace

PreferencePackReport pack_preferences(const PreferencePackOptions& given) {
  PreferencePackOptions options = given;
  check_row_options(options);
  if (options.max_length == 0) options.max_length = options.seq_length / 2;
  if (options.max_length < 2 || options.max_length >= options.seq_length)
    throw ConfigError(
        fmt::format("--max-length {}: expected 2 or more, and room for two answers in the {} tokens of a "
                    "row",
                    options.max_length, options.seq_length));
  const ChatModel model = open_chat_model(options);
  PreferencePackReport report;
  report.vocab_size = model.tokenizer().vocab_size();
  std::vector<RowDocument> train, valid;
  make_of_rows<PreferenceRow, TokenisedPair>(
      options, for_each_preference,
      [&](PreferenceRow row) { return tokenise_pair(model, std::move(row), options.variables); },
      [&](TokenisedPair pair) {
        std::vector<RowDocument>& split =
            in_valid_split(/*seed=*/0, report.pairs++, options.valid_fraction) ? valid : train;
        for (RowDocument& document : documents_of(pair, options, report)) split.push_back(std::move(document));
      });
  for (const auto& [documents, path] : {std::pair{&train, &options.output}, {&valid, &options.valid_output}})
    if (documents->empty() && !path->empty())
      throw DataError(
          fmt::format("{}: no pair is left of {}: {} that cannot be read, {} refused by the template, {} "
                      "with a prompt that fills --max-length, {} too long, {} without an answer",
                      path->string(), report.pairs, report.unreadable.count, report.refused.count,
                      report.long_prompts.count, report.too_long.count, report.without_answer.count));
  const auto write = [&](const fs::path& path, const std::vector<RowDocument>& documents) {
    return write_whole_rows(path, documents, /*together=*/2, options.seq_length, options.one_per_row, model.padding());
  };
  report.train = write(options.output, train);
  if (!options.valid_output.empty()) report.valid = write(options.valid_output, valid);
  const auto text = [&](const RowDocument& document, bool targets) {
    std::vector<int32_t> ids;
    for (size_t t = 0; t < document.ids.size(); ++t)
      if ((document.mask[t] != 0) == targets) ids.push_back(document.ids[t]);
    return model.tokenizer().decode(ids, true);
  };
  report.prompt = text(train[0], false);
  report.chosen = text(train[0], true);
  report.rejected = text(train[1], true);
  return report;
}

}  // namespace trireme
