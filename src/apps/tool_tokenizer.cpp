// `trireme tokenizer`: train, encode, decode with sentencepiece.
#include "tools.h"

#include "data/prepare/tokenizer.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace trireme {
namespace {

struct TrainArguments {
  TokenizerTraining training;
  std::string output;
};

void train(const TrainArguments& arguments) {
  const double start = steady_seconds();
  fmt::print(stderr, "training a {} vocabulary of {} on {} file{} …\n", arguments.training.model_type,
             format_count(arguments.training.vocab_size), arguments.training.inputs.size(),
             arguments.training.inputs.size() == 1 ? "" : "s");
  if (const std::filesystem::path output = arguments.output; output.has_parent_path())
    make_directories(output.parent_path());
  AtomicFile file(arguments.output);  // opened before the training, to fail early if it cannot be written
  const TrainedTokenizer trained = train_tokenizer(arguments.training);
  const Tokenizer check(trained.serialized_model,
                        arguments.output);  // checks that the result can be loaded
  file.write(trained.serialized_model);
  file.commit();
  fmt::print("{}: {} pieces from {} lines ({}) in {}\n", arguments.output, format_count(check.vocab_size()),
             format_count(trained.lines), format_bytes(static_cast<double>(trained.bytes)),
             format_duration(steady_seconds() - start));
  if (trained.invalid_lines > 0)
    fmt::print("dropped {} line(s) that are not UTF-8, the first at {}\n", trained.invalid_lines,
               trained.first_invalid);
  if (trained.long_lines > 0)
    fmt::print("dropped {} line(s) of more than {}\n", trained.long_lines,
               format_bytes(static_cast<double>(kMaxTrainingLine)));
}

struct EncodeArguments {
  std::string model, text;
  bool bos = false, eos = false;
};

void print_ids(const Tokenizer& tokenizer, const std::string& text, const EncodeArguments& arguments) {
  if (!is_valid_utf8(text)) throw DataError("the text is not UTF-8");
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (arguments.bos) ids.insert(ids.begin(), tokenizer.bos_id().value());
  if (arguments.eos) ids.push_back(tokenizer.eos_id().value());
  fmt::print("{}\n", fmt::join(ids, " "));
}

void encode(const EncodeArguments& arguments) {
  const Tokenizer tokenizer{std::filesystem::path(arguments.model)};
  if (arguments.bos && !tokenizer.bos_id()) throw ConfigError("--bos: this tokenizer has no BOS piece");
  if (arguments.eos && !tokenizer.eos_id()) throw ConfigError("--eos: this tokenizer has no EOS piece");
  if (arguments.text != "-") return print_ids(tokenizer, arguments.text, arguments);
  for (std::string line; std::getline(std::cin, line);) print_ids(tokenizer, line, arguments);
}

std::vector<int32_t> parse_ids(const std::vector<std::string>& words) {
  std::vector<int32_t> ids;
  for (const std::string& word : words) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc{} || end != word.data() + word.size())
      throw ConfigError(fmt::format("'{}' is not a token id: expected integers", word));
    ids.push_back(id);
  }
  return ids;
}

void decode(const std::string& model, const std::vector<std::string>& words) {
  const Tokenizer tokenizer{std::filesystem::path(model)};
  if (words != std::vector<std::string>{"-"}) {
    fmt::print("{}\n", tokenizer.decode(parse_ids(words)));
    return;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> parts = split(line, ' ');
    std::erase(parts, "");
    fmt::print("{}\n", tokenizer.decode(parse_ids(parts)));
  }
}

}  // namespace

void add_tokenizer_tool(CLI::App& app) {
  CLI::App* tool = app.add_subcommand("tokenizer", "Train and try sentencepiece tokenizers");
  tool->require_subcommand(1);

  auto training = std::make_shared<TrainArguments>();
  CLI::App* trainer = tool->add_subcommand("train",
                                           "Train a tokenizer with Llama's settings: unk 0, bos 1, eos 2, byte "
                                           "fallback, digits split, no normalisation");
  trainer->add_option("--input", training->training.inputs, "UTF-8 text files, a sentence or paragraph a line")
      ->required();
  trainer->add_option("--vocab-size", training->training.vocab_size, "Number of pieces, including the 259 fixed ones")
      ->required();
  trainer->add_option("--output", training->output, "The model to write (tokenizer.model)")->required();
  trainer->add_option("--model-type", training->training.model_type, "bpe or unigram (default bpe)");
  trainer->add_option("--threads", training->training.threads, "Threads (default: one per core)");
  trainer->add_flag("--verbose", training->training.verbose, "Show sentencepiece's own log");
  trainer->callback([training] { train(*training); });

  auto encoding = std::make_shared<EncodeArguments>();
  CLI::App* encoder = tool->add_subcommand("encode", "Print the token ids of a text");
  encoder->add_option("--model", encoding->model, "tokenizer.model")->required();
  encoder->add_flag("--bos", encoding->bos, "Put BOS before the text");
  encoder->add_flag("--eos", encoding->eos, "Put EOS after the text");
  encoder->add_option("text", encoding->text, "The text, or - for standard input: ids of each line on a line")
      ->required();
  encoder->callback([encoding] { encode(*encoding); });

  auto model = std::make_shared<std::string>();
  auto ids = std::make_shared<std::vector<std::string>>();
  CLI::App* decoder = tool->add_subcommand("decode", "Print the text of token ids");
  decoder->add_option("--model", *model, "tokenizer.model")->required();
  decoder->add_option("ids", *ids, "Token ids, or - for standard input: the text of each line of ids")->required();
  decoder->callback([model, ids] { decode(*model, *ids); });
}

}  // namespace trireme
