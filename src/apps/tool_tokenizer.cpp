// `trireme tokenizer`: encode and decode; train is in tool_tokenizer_train.cpp.
#include "tools.h"

#include "data/tokenizer/tokenizer.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

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

void encode(const EncodeArguments& arguments) {
  const Tokenizer tokenizer{std::filesystem::path(arguments.model)};
  if (arguments.bos && !tokenizer.bos_id()) throw ConfigError("--bos: this tokenizer has no BOS token");
  if (arguments.eos && !tokenizer.eos_id()) throw ConfigError("--eos: this tokenizer has no EOS token");
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

void decode(const std::string& model, bool specials, const std::vector<std::string>& words) {
  const Tokenizer tokenizer{std::filesystem::path(model)};
  if (words != std::vector<std::string>{"-"}) {
    fmt::print("{}\n", tokenizer.decode(parse_ids(words), specials));
    return;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> parts = split(line, ' ');
    std::erase(parts, "");
    fmt::print("{}\n", tokenizer.decode(parse_ids(parts), specials));
  }
}

}  // namespace

void add_tokenizer_tool(CLI::App& app) {
  CLI::App* tool = app.add_subcommand("tokenizer", "Train and try tokenizers: sentencepiece and byte-level BPE");
  tool->require_subcommand(1);

  add_tokenizer_train_tool(*tool);

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
