// `trireme tokenizer`: train (sentencepiece models and byte-level BPE), encode and decode.
#include "tools.h"

#include "data/prepare/sentencepiece_train.h"
#include "data/text_file.h"
#include "data/tokenizer/byte_level_tokenizer.h"
#include "data/tokenizer/byte_level_train.h"
#include "data/tokenizer/tokenizer.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/formats/huggingface/sentencepiece_model.h"
#include "trireme/formats/huggingface/staged_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace trireme {
namespace {

constexpr const char* kModelHelp = "tokenizer.model, tokenizer.json, vocab.json, or a directory with one of them";

struct EncodeArguments {
  std::string model, text;
  bool bos = false, eos = false;
};

void print_ids(const Tokenizer& tokenizer, const std::string& text, const EncodeArguments& arguments) {
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (arguments.bos) ids.insert(ids.begin(), tokenizer.bos_id().value());
  if (arguments.eos) ids.push_back(tokenizer.eos_id().value());
  fmt::print("{}\n", fmt::join(ids, " "));
}

/// Calls `use` with each line of the standard input; its errors name the line.
void for_each_line(const std::function<void(const std::string&)>& use) {
  int64_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    try {
      use(line);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("line {} of the standard input: {}", number, error.what()));
    }
  }
  if (std::cin.bad() || std::ferror(stdin) != 0) throw DataError("the standard input cannot be read");
}

void encode(const EncodeArguments& arguments) {
  const Tokenizer tokenizer{std::filesystem::path(arguments.model)};
  if (arguments.bos && !tokenizer.bos_id()) throw ConfigError("--bos: this tokenizer has no BOS token");
  if (arguments.eos && !tokenizer.eos_id()) throw ConfigError("--eos: this tokenizer has no EOS token");
  if (arguments.text != "-") return print_ids(tokenizer, arguments.text, arguments);
  for_each_line([&](const std::string& line) { print_ids(tokenizer, line, arguments); });
}

std::vector<int32_t> parse_ids(const std::vector<std::string>& words) {
  std::vector<int32_t> ids;
  for (const std::string& word : words) {
    const auto id = parse_whole<int32_t>(word);
    if (!id) throw ConfigError(fmt::format("'{}' is not a token id: expected integers", word));
    ids.push_back(*id);
  }
  return ids;
}

void decode(const std::string& model, bool specials, const std::vector<std::string>& words) {
  const Tokenizer tokenizer{std::filesystem::path(model)};
  if (words != std::vector<std::string>{"-"}) {
    fmt::print("{}\n", tokenizer.decode(parse_ids(words), specials));
    return;
  }
  for_each_line([&](const std::string& line) {
    std::istringstream in(line);
    const std::vector<std::string> ids(std::istream_iterator<std::string>(in), {});
    fmt::print("{}\n", tokenizer.decode(parse_ids(ids), specials));
  });
}

struct TrainArguments {
  TokenizerTraining sentencepiece;
  ByteLevelTraining byte_level;
  std::vector<std::string> specials;
  std::string format, output, field;
  bool force = false;
};

/// Whether train_tokenizer() has made the file.
bool is_trained_here(const std::filesystem::path& path) {
  try {
    const std::string bytes = read_text_file(path, ExitCode::kData);
    return read_sentencepiece_model(bytes, path).max_line == kMaxTrainingLine;
  } catch (const DataError&) {
    return false;
  }
}

/// --output: without --force, neither what others have made nor the tokenizer of a model is replaced.
void require_tokenizer_output(const TrainArguments& arguments) {
  // As byte_level_config_json() begins.
  constexpr std::string_view kConfig = "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"bos_token\": ";
  if (arguments.force) return;
  const std::filesystem::path output = arguments.output;
  const bool is_file = arguments.format == "sentencepiece";
  const auto there = [&](const char* name) { return !file_head(output / name, 1).empty(); };
  constexpr std::array kFiles = {"tokenizer.json",        "vocab.json",      "merges.txt",
                                 "tokenizer_config.json", "tokenizer.model", "vocab.txt"};
  if (is_file ? file_head(output, 1).empty() : std::ranges::none_of(kFiles, there)) return;
  if (is_file ? !is_trained_here(output) : file_head(output / "tokenizer_config.json", kConfig.size()) != kConfig)
    throw WriteError(
        fmt::format("tokenizer train: {} has a tokenizer or file that is not of this program; choose another --output "
                    "or add --force",
                    arguments.output));
  const std::filesystem::path folder = is_file ? std::filesystem::absolute(output).parent_path() : output;
  if (holds_model(folder))
    throw WriteError(fmt::format(
        "tokenizer train: {} is the tokenizer of a model; choose another --output or add --force", arguments.output));
}

struct TextCounts {
  int64_t texts = 0, bytes = 0, dropped = 0;
  std::string first_dropped;
};

/// Texts of a file that are UTF-8: a plain text file is one text, without its lines that are not UTF-8.
void add_texts(const std::filesystem::path& path, const std::string& field, ByteLevelTrainer& trainer,
               TextCounts& counts) {
  const auto add = [&](std::string_view text) {
    if (text.empty()) return;
    ++counts.texts;
    counts.bytes += static_cast<int64_t>(text.size());
    trainer.add(text);
  };
  const auto drop = [&](const std::string& place) {
    if (counts.dropped++ == 0) counts.first_dropped = place;
  };
  if (text_kind(path, field) != TextKind::kPlain)
    return for_each_document(path, DocumentUnit::kFile, field, [&](const Document& document) {
      is_valid_utf8(document.text) ? add(document.text) : drop(document_place(path, document));
    });
  const TextBytes bytes(path);
  std::string_view rest = bytes.text();
  for (int64_t line = 1; !rest.empty();) {
    const size_t good = valid_utf8_prefix(rest);
    if (good == rest.size()) return add(rest);
    const size_t begin = rest.substr(0, good).rfind('\n') + 1;  // of the bad line; npos + 1 = 0
    line += std::count(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(begin), '\n');
    add(rest.substr(0, begin));
    drop(fmt::format("{}:{}", path.string(), line));
    ++line;
    rest.remove_prefix(std::min(rest.find('\n', good), rest.size() - 1) + 1);
  }
}

void train_byte_level(const TrainArguments& arguments) {
  const double start = steady_seconds();
  const std::filesystem::path output = arguments.output;
  ByteLevelTrainer trainer(arguments.byte_level);
  TextCounts counts;
  for (const auto& path : arguments.sentencepiece.inputs) add_texts(path, arguments.field, trainer, counts);
  if (counts.texts == 0)
    throw DataError(fmt::format("no text to train on: the input has no UTF-8 text ({} dropped)", counts.dropped));
  make_directories(output);
  std::fputs(
      fmt::format("{} different words in {}; merging …\n", format_count(trainer.words()), format_bytes(counts.bytes))
          .c_str(),
      stderr);
  const ByteLevelModel model = trainer.train();
  const std::string json = tokenizer_json(model);
  const Tokenizer check(std::make_unique<ByteLevelTokenizer>(parse_tokenizer_json(json, output), output));
  write_file_atomic(output / "vocab.json", vocab_json(model));
  write_file_atomic(output / "merges.txt", merges_txt(model));
  write_file_atomic(output / "tokenizer_config.json", byte_level_config_json(model, 0));
  write_file_atomic(output / "tokenizer.json", json);
  fmt::print("{}: tokenizer.json, vocab.json and merges.txt: {} tokens, {} merges, from {} in {}\n", arguments.output,
             format_count(check.vocab_size()), format_count(model.merges.size()), format_bytes(counts.bytes),
             format_duration(steady_seconds() - start));
  if (check.vocab_size() < arguments.byte_level.vocab_size)
    fmt::print("fewer tokens than the {} asked for: no other pair of tokens comes {} times or more\n",
               format_count(arguments.byte_level.vocab_size), std::max<int64_t>(1, arguments.byte_level.min_frequency));
  if (counts.dropped > 0)
    fmt::print("skipped {} not encoded in UTF-8, the first at {}\n",
               counted(counts.dropped, "line or document", "lines or documents"), counts.first_dropped);
  if (trainer.long_words() > 0)
    fmt::print("skipped {} of more than {} bytes\n", counted(trainer.long_words(), "word"), kMaxTrainingWord);
}

void train_sentencepiece(const TrainArguments& arguments) {
  const TokenizerTraining& training = arguments.sentencepiece;
  const double start = steady_seconds();
  std::fputs(fmt::format("training a {} vocabulary of {} on {} …\n", training.model_type,
                         format_count(training.vocab_size), counted(training.inputs.size(), "file"))
                 .c_str(),
             stderr);
  for (const auto& input : training.inputs) (void)MappedFile(input, ExitCode::kData);
  if (const std::filesystem::path output = arguments.output; output.has_parent_path())
    make_directories(output.parent_path());
  AtomicFile file(arguments.output);  // opened before the training, to fail early if it cannot be written
  const TrainedTokenizer trained = train_tokenizer(training);
  const Tokenizer check(trained.serialized_model, arguments.output);  // checks that the result can be loaded
  file.write(trained.serialized_model);
  file.commit();
  fmt::print("{}: {} pieces from {} ({}) in {}\n", arguments.output, format_count(check.vocab_size()),
             counted(trained.lines, "line"), format_bytes(trained.bytes), format_duration(steady_seconds() - start));
  if (trained.invalid_lines > 0)
    fmt::print("skipped {} not encoded in UTF-8, the first at {}\n", counted(trained.invalid_lines, "line"),
               trained.first_invalid);
  if (trained.long_lines > 0)
    fmt::print("skipped {} of more than {}\n", counted(trained.long_lines, "line"), format_bytes(kMaxTrainingLine));
}

using OptionsOfOne = std::vector<std::pair<std::string, const char*>>;
const OptionsOfOne kByteLevelOptions = {{"--special", ": Llama's pieces are fixed"},
                                        {"--field", ": a sentencepiece model is trained on plain text"},
                                        {"--min-frequency", ""},
                                        {"--pattern", ""}};
const OptionsOfOne kSentencepieceOptions = {{"--threads", ""}, {"--verbose", ""}};

void train(TrainArguments arguments, const CLI::App& command) {
  const bool model_file = std::filesystem::path(arguments.output).extension() == ".model";
  if (arguments.format.empty()) arguments.format = model_file ? "sentencepiece" : "byte-level";
  const bool sentencepiece = arguments.format == "sentencepiece";
  for (const auto& [option, why] : sentencepiece ? kByteLevelOptions : kSentencepieceOptions)
    if (command.count(option) > 0)
      throw ConfigError(
          fmt::format("{} is for --format {}{}", option, sentencepiece ? "byte-level" : "sentencepiece", why));
  require_tokenizer_output(arguments);
  if (sentencepiece) return train_sentencepiece(arguments);
  if (arguments.sentencepiece.model_type != "bpe")
    throw ConfigError(fmt::format("--type {}: --format byte-level has bpe only", arguments.sentencepiece.model_type));
  if (model_file)
    throw ConfigError(
        fmt::format("--output {}: byte-level BPE is a directory of files, not a .model file", arguments.output));
  arguments.byte_level.vocab_size = arguments.sentencepiece.vocab_size;
  if (!arguments.specials.empty()) arguments.byte_level.specials = arguments.specials;
  train_byte_level(arguments);
}

void add_trainer(CLI::App& tool) {
  auto arguments = std::make_shared<TrainArguments>();
  TokenizerTraining& training = arguments->sentencepiece;
  CLI::App* trainer = tool.add_subcommand(
      "train",
      "Train a tokenizer: a sentencepiece model with Llama's settings (unk 0, bos 1, eos 2, byte fallback, digits "
      "split, no normalisation), or byte-level BPE as GPT-2 has it (tokenizer.json, vocab.json and merges.txt)");
  trainer->add_option("--input", training.inputs, "UTF-8 text files; byte-level BPE takes JSON, Parquet and Arrow too")
      ->required();
  trainer->add_option("--vocab-size", training.vocab_size, "Number of tokens, with bytes and special tokens")
      ->required();
  trainer->add_option("--output", arguments->output, "What to write: NAME.model, or a directory for byte-level BPE")
      ->required();
  trainer->add_option("--format", arguments->format, "Default: sentencepiece if --output ends in .model")
      ->check(CLI::IsMember({"sentencepiece", "byte-level"}));
  trainer->add_option("--type,--model-type", training.model_type, "Default bpe")
      ->check(CLI::IsMember({"bpe", "unigram"}));
  trainer->add_option("--special", arguments->specials, "Byte-level: special tokens (default <|endoftext|>)")
      ->allow_extra_args(false);
  trainer
      ->add_option("--min-frequency", arguments->byte_level.min_frequency,
                   "Byte-level: how often a pair must come to be merged")
      ->capture_default_str();
  trainer->add_option("--pattern", arguments->byte_level.pattern, "Byte-level: words as gpt2, llama3 or qwen2 cut them")
      ->capture_default_str();
  trainer->add_option("--field", arguments->field,
                      "Byte-level: the field with the text in JSON, Parquet and Arrow (default text)");
  trainer->add_option("--threads", training.threads, "Sentencepiece: threads (default: one per core)");
  trainer->add_flag("--force", arguments->force, "Replace the tokenizer in --output");
  trainer->add_flag("--verbose", training.verbose, "Sentencepiece: show its own log");
  trainer->callback([arguments, trainer] { train(*arguments, *trainer); });
}

}  // namespace

void add_tokenizer_tool(CLI::App& app) {
  CLI::App* tool = app.add_subcommand("tokenizer", "Train and try tokenizers: sentencepiece and byte-level BPE");
  tool->require_subcommand(1);

  add_trainer(*tool);

  auto encoding = std::make_shared<EncodeArguments>();
  CLI::App* encoder = tool->add_subcommand("encode", "Print the token ids of a text");
  encoder->add_option("--model", encoding->model, kModelHelp)->required();
  encoder->add_flag("--bos", encoding->bos, "Put BOS before the text");
  encoder->add_flag("--eos", encoding->eos, "Put EOS after the text");
  encoder->add_option("text", encoding->text, "The text, or - for standard input: ids of each line on a line")
      ->required();
  encoder->callback([encoding] { encode(*encoding); });

  auto model = std::make_shared<std::string>();
  auto ids = std::make_shared<std::vector<std::string>>();
  CLI::App* decoder = tool->add_subcommand("decode", "Print the text of token ids");
  decoder->add_option("--model", *model, kModelHelp)->required();
  auto specials = std::make_shared<bool>(false);
  decoder->add_flag("--special", *specials, "Show special tokens (BOS, EOS, <|endoftext|>) by their names");
  decoder->add_option("ids", *ids, "Token ids, or - for standard input: the text of each line of ids")->required();
  decoder->callback([model, specials, ids] { decode(*model, *specials, *ids); });
}

}  // namespace trireme
