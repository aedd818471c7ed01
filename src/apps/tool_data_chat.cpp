// `trireme data chat` and `trireme data preference`: conversations and pairs of answers to training rows.
#include "tools.h"

#include "data/prepare/chat_pack.h"
#include "data/prepare/preference_pack.h"
#include "data/tokenizer/packed_with.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

namespace trireme {
namespace {

struct ChatArguments {
  ChatPackOptions options;
  std::string long_conversations = "cut", loss = "all";
  std::vector<std::string> variables;
};

void print_chat_split(const std::string& path, const RowCounts& split, int64_t seq_length, const std::string& what) {
  const double places = static_cast<double>(split.rows * seq_length);
  fmt::print("{}: {} of {} tokens from {}; {} tokens, {} with a loss ({:.1f} %), {} padding ({:.1f} %)\n", path,
             counted(split.rows, "row"), format_count(seq_length), what, format_count(split.tokens),
             format_count(split.targets),
             100.0 * static_cast<double>(split.targets) / static_cast<double>(split.tokens),
             format_count(split.padding), 100.0 * static_cast<double>(split.padding) / places);
}

void warn_of_unwritten(int64_t count, const std::string& what, const std::string& first) {
  log_warn(
      fmt::format("{} with a message, reasoning or tools that the template does not write as they are, the first: {}",
                  counted(count, what), excerpt(first, 160)));
}

void write_origin(const ChatRowOptions& options) {
  const Tokenizer tokenizer{std::filesystem::path(options.tokenizer)};
  write_packed_with(options.output, tokenizer, options.tokenizer);
  if (!options.valid_output.empty()) write_packed_with(options.valid_output, tokenizer, options.tokenizer);
}

void chat(ChatArguments& arguments) {
  ChatPackOptions& options = arguments.options;
  options.drop_long = arguments.long_conversations == "drop";
  options.last_only = arguments.loss == "last";
  options.variables = template_variables(arguments.variables);
  const double start = steady_seconds();
  const ChatPackReport report = pack_conversations(options);
  write_origin(options);
  const auto print = [&](const std::filesystem::path& path, const RowCounts& split) {
    print_chat_split(path.string(), split, options.seq_length, counted(split.documents, "conversation"));
  };
  print(options.output, report.train);
  if (!options.valid_output.empty()) print(options.valid_output, report.valid);
  for (size_t i = 0; i < report.inputs.size() && report.inputs.size() > 1; ++i)
    fmt::print("  {}: {}, {} tokens, {} with a loss ({:.1f} % of all with a loss)\n", options.inputs[i].string(),
               counted(report.inputs[i].documents, "conversation"), format_count(report.inputs[i].tokens),
               format_count(report.inputs[i].targets),
               100.0 * static_cast<double>(report.inputs[i].targets) / static_cast<double>(report.train.targets));
  const auto has = [&](ChatSource source) { return report.sources.contains(source); };
  fmt::print("read {} in {}; template {}; vocabulary {}\n", counted(report.conversations, "conversation"),
             format_duration(steady_seconds() - start), has(ChatSource::kConversation) ? report.template_name : "none",
             format_count(report.vocab_size));
  std::vector<std::string> losses;
  if (has(ChatSource::kConversation))
    losses.push_back(std::string(report.by_generation_blocks
                                     ? "what the template's generation blocks write"
                                     : "each answer of the assistant, with what the template writes after it") +
                     (options.last_only ? ", of the last answer alone" : ""));
  if (has(ChatSource::kTexts)) losses.emplace_back("the completion of texts, with EOS");
  if (has(ChatSource::kIds)) losses.emplace_back("the tokens that rows of ids mark");
  if (!losses.empty()) fmt::print("loss: {}\n", join(losses, "; "));
  if (report.unreadable > 0)
    fmt::print("dropped {} that cannot be read, the first: {}\n", counted(report.unreadable, "conversation"),
               report.first_unreadable);
  if (report.refused > 0)
    fmt::print("dropped {} that the template refuses, the first: {}\n", counted(report.refused, "conversation"),
               report.first_refusal);
  if (report.untrained > 0)
    fmt::print("dropped {} without an answer of the assistant inside a row, the first: {}\n",
               counted(report.untrained, "conversation"), report.first_untrained);
  if (report.unwritten > 0) warn_of_unwritten(report.unwritten, "conversation", report.first_unwritten);
  if (report.cut > 0) fmt::print("cut {} at the end of a row\n", counted(report.cut, "conversation"));
  if (report.dropped_long > 0)
    fmt::print("dropped {} longer than a row\n", counted(report.dropped_long, "conversation"));
  fmt::print("  first {}: {}\n", has(ChatSource::kConversation) ? "conversation" : "row", excerpt(report.sample, 400));
  for (size_t i = 0; i < report.sample_targets.size() && i < 3; ++i)
    fmt::print("  loss on: {}\n", excerpt(report.sample_targets[i]));
}

constexpr const char* kChatHelp =
    "Conversations (JSON lines, a JSON list, Parquet, Arrow), also prompts with completions, Alpaca's instructions "
    "and rows of ids with labels or masks, to training rows: rendered by the model's chat template, with a loss on "
    "what the assistant says, packed whole "
    "into rows of --seq-length tokens";

// ---- preference

struct PreferenceArguments {
  PreferencePackOptions options;
  std::string truncation = "keep_start";
  std::vector<std::string> variables;
};

void preference(PreferenceArguments& arguments) {
  PreferencePackOptions& options = arguments.options;
  using Long = PreferencePackOptions::Long;
  options.longer = arguments.truncation == "keep_end" ? Long::kKeepEnd
                   : arguments.truncation == "drop"   ? Long::kDrop
                                                      : Long::kKeepStart;
  options.variables = template_variables(arguments.variables);
  const double start = steady_seconds();
  const PreferencePackReport report = pack_preferences(options);
  write_origin(options);
  const char* what = options.unpaired ? "answer" : "pair";
  const auto print = [&](const std::filesystem::path& path, const RowCounts& split) {
    print_chat_split(path.string(), split, options.seq_length, counted(split.documents / 2, what));
  };
  print(options.output, report.train);
  if (!options.valid_output.empty()) print(options.valid_output, report.valid);
  fmt::print("read {} in {}; vocabulary {}\n", counted(report.pairs, options.unpaired ? "row" : "pair"),
             format_duration(steady_seconds() - start), format_count(report.vocab_size));
  const auto dropped = [&](const DroppedPairs& pairs, const char* why, const char* verb = "dropped") {
    if (pairs.count > 0) fmt::print("{} {} {}, the first: {}\n", verb, counted(pairs.count, what), why, pairs.first);
  };
  dropped(report.unreadable, "that cannot be read");
  dropped(report.refused, "that the template refuses");
  dropped(report.long_prompts, "whose prompt fills --max-length");
  dropped(report.too_long, "that are too long");
  dropped(report.without_answer, options.unpaired ? "of no tokens" : "with an answer of no tokens");
  if (report.unwritten.count > 0) warn_of_unwritten(report.unwritten.count, what, report.unwritten.first);
  if (report.same > 0)
    fmt::print("note: {} with equal answers{}, kept as TRL keeps them: they have no gradient with dpo\n",
               counted(report.same, "pair"), report.cut > 0 ? " (perhaps after the cut)" : "");
  if (report.cut > 0)
    fmt::print("cut {} at the {} of an answer\n", counted(report.cut, what),
               options.longer == Long::kKeepEnd ? "start" : "end");
  dropped(report.other_prompts,
          options.unpaired ? "beginning inside the prompt, because the prompt alone has other last tokens"
                           : "whose answers begin inside the prompt, because the prompt alone has other last tokens",
          "note:");
  if (report.alone > 0)
    fmt::print(
        "note: {} alone in a row, whose KL term is the ratio of that answer: a longer --seq-length or a shorter "
        "--max-length packs several\n",
        counted(report.alone, "answer"));
  fmt::print("  first prompt: {}\n", excerpt(report.prompt, 400));
  // Judged answers have prompts of their own.
  const auto print_answer = [&](const char* name, const FirstAnswer& first) {
    const bool other = options.unpaired && !first.text.empty() && first.prompt != report.prompt;
    fmt::print("  {}{}: {}\n", name, other ? fmt::format(", to the prompt {}", excerpt(first.prompt, 400)) : "",
               excerpt(first.text));
  };
  print_answer(options.unpaired ? "first desirable answer" : "chosen", report.chosen);
  print_answer(options.unpaired ? "first undesirable answer" : "rejected", report.rejected);
}

constexpr const char* kPreferenceHelp =
    "Pairs of a chosen and a rejected answer (JSON lines, a JSON list, Parquet, Arrow) to training rows for "
    "train.objective dpo and orpo: fields prompt, chosen and rejected as TRL has them, rendered by the model's chat "
    "template, with a loss on the answers, packed whole into rows of --seq-length tokens. --unpaired: judged answers, "
    "prompt, completion and label, for kto";

/// Options of both commands. `what`: "conversation", of which rows are made.
void add_row_options(CLI::App& command, ChatRowOptions& options, std::vector<std::string>& variables,
                     const std::string& what) {
  command.add_option("--model", options.tokenizer, "Model directory: its tokenizer and chat template")->required();
  command.add_option("--input", options.inputs, "Files to read, in this order")->required();
  command.add_option("--output", options.output, "Token file: .npy, or .h5/.hdf5")->required();
  command.add_option("--seq-length", options.seq_length, "Tokens in a row")->required();
  add_template_options(command, options.template_file, options.template_name, variables);
  command.add_option("--valid-output", options.valid_output, "Second token file, for validation");
  command.add_option("--valid-fraction", options.valid_fraction,
                     fmt::format("Fraction of the {}s in the validation file", what));
  command.add_flag("--one-per-row", options.one_per_row, fmt::format("No packing: one {} in a row", what));
  command.add_flag("--skip-refused", options.skip_refused,
                   "Drop and count what cannot be read or is refused by the template");
  command.add_option("--threads", options.threads, "Threads (default: one per core)");
}

}  // namespace

nlohmann::ordered_json template_variables(const std::vector<std::string>& texts) {
  nlohmann::ordered_json variables;
  for (const std::string& each : texts) {
    const size_t equals = each.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw ConfigError(fmt::format("--variable {}: expected NAME=VALUE", each));
    // true, false, null, numbers, lists and objects as in JSON; everything else is a text, also what is no number's
    // own form, such as 1.50.
    const std::string name = each.substr(0, equals), text = each.substr(equals + 1);
    nlohmann::ordered_json value = text;
    if (nlohmann::ordered_json::accept(text)) {
      auto json = parse_ordered_json(text, "--variable " + name, ExitCode::kConfig);
      if (!json.is_string() && (!json.is_number() || json.dump() == text)) value = std::move(json);
    }
    variables[name] = std::move(value);
  }
  return variables;
}

void add_chat_data_tool(CLI::App& data) {
  auto arguments = std::make_shared<ChatArguments>();
  ChatPackOptions& options = arguments->options;
  CLI::App* command = data.add_subcommand("chat", kChatHelp);
  add_row_options(*command, options, arguments->variables, "conversation");
  command->add_option("--field", options.field,
                      "Field or column to read: the messages, or input_ids (default: messages, else conversations, "
                      "prompt and completion, instruction and output, or input_ids)");
  command
      ->add_option("--long", arguments->long_conversations,
                   "A conversation longer than a row: cut (loses its end, the default) or drop")
      ->check(CLI::IsMember({"cut", "drop"}));
  command
      ->add_option("--loss", arguments->loss,
                   "Answers with a loss: all (the default), or the last one of a conversation")
      ->check(CLI::IsMember({"all", "last"}));
  command->add_option("--weight", options.weights,
                      "For each --input: how often a conversation of it is in the training rows; 2 = twice, 0.25 = a "
                      "quarter of them once");
  command->callback([arguments] { chat(*arguments); });
}

void add_preference_data_tool(CLI::App& data) {
  auto arguments = std::make_shared<PreferenceArguments>();
  PreferencePackOptions& options = arguments->options;
  CLI::App* command = data.add_subcommand("preference", kPreferenceHelp);
  add_row_options(*command, options, arguments->variables, "pair");
  command->add_option("--max-length", options.max_length,
                      "Tokens of a prompt with one answer (TRL's max_length; default: half of --seq-length, with "
                      "--unpaired an eighth)");
  command->add_flag("--unpaired", options.unpaired,
                    "Rows of judged answers for train.objective kto, from prompt, completion and label, or from pairs");
  command
      ->add_option("--truncation-mode", arguments->truncation,
                   "A longer one: keep_start (loses its end, the default), keep_end, or drop (the pair)")
      ->check(CLI::IsMember({"keep_start", "keep_end", "drop"}));
  command->callback([arguments] { preference(*arguments); });
}

}  // namespace trireme
