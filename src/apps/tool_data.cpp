// `trireme data`: converts text and published data sets to the token files of the trainers.
#include "tools.h"

#include "data/prepare/mlperf.h"
#include "data/prepare/pack.h"
#include "data/prepare/ultrachat.h"
#include "data/tokenizer/packed_with.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace trireme {
namespace {

void print_samples(const std::vector<std::string>& samples) {
  for (size_t i = 0; i < samples.size(); ++i) fmt::print("  sample {}: {}\n", i + 1, excerpt(samples[i]));
}

// ---- pack

struct PackArguments {
  PackOptions options;
  std::string tokenizer, unit = "paragraph";
};

void print_split(const std::string& path, const PackedSplit& split, int64_t seq_length) {
  fmt::print("{}: {} of {} tokens from {} ({} tokens; {} after the last whole row dropped)\n", path,
             counted(split.rows, "row"), format_count(seq_length), counted(split.documents, "document"),
             format_count(split.tokens), format_count(split.tail_tokens));
}

void pack(PackArguments& arguments) {
  PackOptions& options = arguments.options;
  if (arguments.unit == "line") options.unit = DocumentUnit::kLine;
  if (arguments.unit == "file") options.unit = DocumentUnit::kFile;
  const double start = steady_seconds();
  const Tokenizer tokenizer{std::filesystem::path(arguments.tokenizer)};
  const PackReport report = pack_documents(tokenizer, options);
  write_packed_with(options.output, tokenizer, arguments.tokenizer);
  if (!options.valid_output.empty()) write_packed_with(options.valid_output, tokenizer, arguments.tokenizer);
  print_split(options.output.string(), report.train, options.seq_length);
  if (!options.valid_output.empty()) print_split(options.valid_output.string(), report.valid, options.seq_length);
  fmt::print("read {} ({}) in {}; vocabulary {}\n", counted(report.documents, "document"), format_bytes(report.bytes),
             format_duration(steady_seconds() - start), format_count(tokenizer.vocab_size()));
  if (!options.bos && !options.eos && !options.separate_documents && report.documents > 1)
    fmt::print("no token stands between documents: --bos or --eos puts one there\n");
  if (report.invalid_utf8 > 0)
    fmt::print("skipped {} not encoded in UTF-8, the first at {}\n", counted(report.invalid_utf8, "document"),
               report.first_invalid);
  if (report.empty > 0) fmt::print("skipped {}\n", counted(report.empty, "empty document"));
  if (report.too_short > 0)
    fmt::print("skipped {} of fewer than {} tokens ({} tokens)\n", counted(report.too_short, "document"),
               options.min_tokens, format_count(report.short_tokens));
  print_samples(report.samples);
}

void add_pack(CLI::App& tool) {
  auto arguments = std::make_shared<PackArguments>();
  PackOptions& options = arguments->options;
  CLI::App* command = tool.add_subcommand(
      "pack", "Tokenise text, JSON (.jsonl, .json), Parquet or Arrow and cut it into rows of --seq-length tokens");
  command->add_option("--tokenizer", arguments->tokenizer, "Tokenizer: tokenizer.model, tokenizer.json, or a directory")
      ->required();
  command->add_option("--input", options.inputs, "Files to read, in this order")->required();
  command->add_option("--output", options.output, "Token file: .npy, or .h5/.hdf5")->required();
  command->add_option("--seq-length", options.seq_length, "Tokens in a row")->required();
  command
      ->add_option("--document", arguments->unit,
                   "Unit of a document in a text file (default: paragraph, between blank lines)")
      ->check(CLI::IsMember({"paragraph", "line", "file"}));
  command->add_option("--field", options.field,
                      "Field or column that holds the text (JSON, Parquet, Arrow; default text)");
  command->add_flag("--bos", options.bos, "BOS before every document that does not begin with it");
  command->add_flag("--eos", options.eos, "EOS after every document that does not end with it");
  command->add_flag("--separate-documents", options.separate_documents,
                    "Record where documents start: attention does not cross them (.h5, or an object .npy as MLPerf's)");
  command->add_option("--valid-output", options.valid_output, "Second token file, for validation");
  command->add_option("--valid-fraction", options.valid_fraction, "Fraction of the documents in the validation file");
  command->add_option("--shuffle-seed", options.shuffle_seed,
                      "Shuffle the documents before packing (NumPy RandomState of this seed); default: file order");
  command->add_option("--batch-documents", options.batch_documents,
                      "Concatenate and cut so many documents at a time and drop the rest of each such batch, as "
                      "datasets.map(batched=True) does (its batches have 1000); default: all at once");
  command->add_option("--min-tokens", options.min_tokens, "Drop documents of fewer tokens (default 2)");
  command->add_option("--threads", options.threads, "Threads (default: one per core)");
  command->callback([arguments] { pack(*arguments); });
}

// ---- mlperf

struct MlperfArguments {
  std::string train, valid, output;
};

void mlperf(const MlperfArguments& arguments) {
  const double start = steady_seconds();
  const MlperfReport report = convert_mlperf(arguments.train, arguments.valid, arguments.output);
  for (const MlperfFile* file : {&report.train, &report.valid})
    fmt::print("{}: {} of {} tokens, {} with loss, md5 {}\n", file->path.string(), counted(file->rows, "row"),
               format_count(file->seq_length), format_count(file->targets), file->md5);
  fmt::print("directory md5 {}", report.directory_md5);
  if (!report.is_benchmark)
    fmt::print(" (3,901 and 173 rows would make it MLPerf's own data set, whose hash is {})\n", kMlperfDirectoryMd5);
  else if (report.directory_md5 == kMlperfDirectoryMd5)
    fmt::print(": match, this is MLPerf's data set\n");
  else
    fmt::print(": MISMATCH, MLPerf's data set has {}\n", kMlperfDirectoryMd5);
  fmt::print("done in {}\n", format_duration(steady_seconds() - start));
}

void add_mlperf(CLI::App& tool) {
  auto arguments = std::make_shared<MlperfArguments>();
  CLI::App* command = tool.add_subcommand(
      "mlperf",
      "MLPerf llama2_70b_lora: the published Parquet files to the benchmark's exact train.npy and validation.npy");
  command->add_option("--train", arguments->train, "train-00000-of-00001.parquet")->required();
  command->add_option("--valid", arguments->valid, "validation-00000-of-00001.parquet")->required();
  command->add_option("--output", arguments->output, "Directory for train.npy and validation.npy")->required();
  command->callback([arguments] { mlperf(*arguments); });
}

// ---- ultrachat

struct UltrachatArguments {
  UltrachatOptions options;
  std::string tokenizer, splits = "all";
};

void ultrachat(UltrachatArguments& arguments) {
  UltrachatOptions& options = arguments.options;
  options.sft_only = arguments.splits == "sft";
  const double start = steady_seconds();
  Tokenizer tokenizer{std::filesystem::path(arguments.tokenizer)};
  const UltrachatReport report = convert_ultrachat(tokenizer, options);
  for (const UltrachatSplit* split : {&report.train, &report.valid}) {
    if (split->files.empty()) {
      fmt::print("no test file among the inputs: no validation.npy\n");
      continue;
    }
    write_packed_with(split->output, tokenizer, arguments.tokenizer);
    fmt::print("{}: {} of {} tokens from {} in {}; {} tokens, {} dropped at the end of {}\n", split->output.string(),
               counted(split->rows, "row"), format_count(options.seq_length),
               counted(split->conversations, "conversation"), counted(split->files.size(), "file"),
               format_count(split->tokens), format_count(split->tail_tokens), counted(split->buffers, "buffer"));
  }
  const auto generated = std::ranges::count_if(report.train.files, [](const std::filesystem::path& file) {
    return file.filename().string().find("train_gen") != std::string::npos;
  });
  if (generated > 0)
    fmt::print("{} of train_gen among the training files, as in the recipe; --splits sft takes train_sft alone\n",
               counted(generated, "file"));
  std::vector<std::string> names;
  for (const auto& [text, id] : report.specials) names.push_back(fmt::format("{} = {}", text, id));
  fmt::print("special tokens: {}\n", join(names, ", "));
  fmt::print(
      "vocabulary {}: train with model.vocab_size: {} (rounded up to a multiple of 8), or resize the model with "
      "trireme model resize-vocab --vocab-size {}\n",
      format_count(report.vocab_size), report.padded_vocab_size, report.padded_vocab_size);
  fmt::print("done in {}\n", format_duration(steady_seconds() - start));
  print_samples(report.samples);
}

constexpr const char* kUltrachatHelp =
    "ultrachat_200k as the Hugging Face 70B recipe trains on it: ChatML text, TRL's constant-length packing.\n"
    "Tokens equal transformers 4.40's LlamaTokenizerFast in its legacy mode: special tokens are "
    "split out first and each text part between them gets sentencepiece's leading space. <unk>, <s> and </s> written "
    "in a conversation become their ids, as there.\n"
    "Rows equal TRL 0.8's; inside a buffer they are shuffled by Python's random.Random(--seed), "
    "used for nothing else. In the original run other code draws from that generator as well, so its order of rows "
    "within a buffer is not reproduced.";

void add_ultrachat(CLI::App& tool) {
  auto arguments = std::make_shared<UltrachatArguments>();
  UltrachatOptions& options = arguments->options;
  CLI::App* command = tool.add_subcommand("ultrachat", kUltrachatHelp);
  command->add_option("--input", options.inputs, "Parquet files, or directories of them; names contain train or test")
      ->required();
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "The base model's tokenizer: tokenizer.model, tokenizer.json, or its directory")
      ->required();
  command->add_option("--output", options.output_directory, "Directory for train.npy and validation.npy")->required();
  command->add_option("--seq-length", options.seq_length, "Tokens in a row (default 2048)");
  command
      ->add_option("--splits", arguments->splits,
                   "all: train_gen and train_sft, as the recipe does (default); sft: train_sft alone")
      ->check(CLI::IsMember({"all", "sft"}));
  command->add_option("--seed", options.seed, "Seed of the shuffle within a buffer (default 100)");
  command->add_option("--threads", options.threads, "Threads (default: one per core)");
  command->callback([arguments] { ultrachat(*arguments); });
}

}  // namespace

std::string excerpt(const std::string& text, size_t characters) {
  std::string line;
  size_t count = 0;
  for (const char c : text) {
    if (!continues_character(c) && count++ == characters) return line + " …";
    if (c == '\n')
      line += "\\n";
    else if (static_cast<unsigned char>(c) >= 0x20)
      line += c;
  }
  return line;
}

void add_data_tool(CLI::App& app) {
  CLI::App* tool = app.add_subcommand(
      "data", "Make token files: pack text and conversations, convert MLPerf's and ultrachat's Parquet, BERT's rows");
  tool->require_subcommand(1);
  add_pack(*tool);
  add_mlperf(*tool);
  add_ultrachat(*tool);
  add_chat_data_tool(*tool);
  add_preference_data_tool(*tool);
  add_bert_data_tool(*tool);
  add_megatron_data_tool(*tool);
}

}  // namespace trireme
