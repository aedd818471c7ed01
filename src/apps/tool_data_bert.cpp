// `trireme data bert`: makes the packed shards and the evaluation set of train_bert from text.
#include "tools.h"

#include "data/prepare/bert_files.h"
#include "data/prepare/bert_unicode.h"
#include "trireme/base/log.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;

std::string kept_note(size_t kept) { return kept == 0 ? "" : fmt::format(", {} of them finished before", kept); }

void add_instance_options(CLI::App& command, BertInstanceOptions& options) {
  command.add_option("--seq-length", options.seq_length, "Longest sequence in tokens (default 512)");
  command.add_option("--max-predictions", options.max_predictions, "Masked tokens of a sequence at most (default 76)");
  command.add_option("--masked-lm-prob", options.masked_lm_prob, "Share of tokens to mask (default 0.15)");
  command.add_option("--short-seq-prob", options.short_seq_prob, "Probability of a short target length (default 0.1)");
  command.add_option("--dupe-factor", options.dupe_factor, "Passes over the text (default 10)");
  command.add_flag("--cased", options.cased,
                   "The text keeps its case and accents, for the vocabulary of a cased model (do_lower_case false)");
  command.add_option("--seed", options.seed, "Seed of Python's random.Random, the same for each part (default 12345)");
}

// ---- instances

struct InstancesArguments {
  std::vector<fs::path> inputs;
  fs::path vocab, output;
  BertInstanceOptions options;
  unsigned threads = 0;
};

void warn_of_vocabulary(const fs::path& path, bool cased) {
  const BertVocab vocab(path);
  constexpr int32_t kMany = 100;
  if (!cased && vocab.capitals() >= kMany)
    log_warn(
        fmt::format("{}: {} tokens have capital letters, and the text is lower-cased: give --cased if the vocabulary "
                    "is that of a cased model",
                    path.string(), format_count(vocab.capitals())));
  if (const int32_t repeated = vocab.repeated(); repeated > 0)
    log_warn(
        fmt::format("{}: {} line(s) repeat another one; the last of equal lines gives the token's id, as in "
                    "transformers (MLPerf's own script counts distinct lines, and would shift the ids after them)",
                    path.string(), format_count(repeated)));
}

void instances(const InstancesArguments& arguments) {
  warn_of_vocabulary(arguments.vocab, arguments.options.cased);
  const double start = steady_seconds();
  const BertInstancesReport report =
      create_bert_instances(arguments.inputs, arguments.vocab, arguments.options, arguments.output, arguments.threads);
  const double seconds = steady_seconds() - start;
  fmt::print("{}: {} from {}{} (Unicode {})\n", arguments.output.string(), counted(report.instances, "instance"),
             counted(report.parts, "part"), kept_note(report.kept), unicode_version());
  fmt::print("read {} ({}) in {}\n", counted(report.documents, "document"), format_bytes(report.bytes),
             format_duration(seconds));
}

void add_instances(CLI::App& tool) {
  auto arguments = std::make_shared<InstancesArguments>();
  CLI::App* command = tool.add_subcommand("instances",
                                          "Tokenise text (one sentence a line, blank lines between documents) and make "
                                          "masked sentence pairs, equal to those of "
                                          "MLPerf's create_pretraining_data.py; resumes after an interruption");
  command->add_option("--input", arguments->inputs, "Text files, or directories of files named part*")->required();
  command->add_option("--vocab", arguments->vocab, "vocab.txt")->required();
  command->add_option("--output", arguments->output, "Directory for the .instances files")->required();
  add_instance_options(*command, arguments->options);
  command->add_option("--threads", arguments->threads,
                      "Threads (default: one per core); each reads one part and needs about 0.5 GB for 30 MB of text");
  command->callback([arguments] { instances(*arguments); });
}

// ---- pack

void add_instances_input(CLI::App& command, std::vector<fs::path>& inputs) {
  command.add_option("--input", inputs, "Files of trireme data bert instances, or directories of them")->required();
}

struct BertPackArguments {
  std::vector<fs::path> inputs;
  fs::path output;
  int shards = 4320;
  uint32_t seed = 12345;
  unsigned threads = 0;
};

void run_bert_pack(const BertPackArguments& arguments) {
  const double start = steady_seconds();
  const BertPackReport report =
      pack_bert(arguments.inputs, arguments.output, arguments.shards, arguments.seed, arguments.threads);
  const double rows = static_cast<double>(report.rows), sequences = static_cast<double>(report.sequences);
  fmt::print("{}: {} in {} of {}{}\n", arguments.output.string(), counted(report.sequences, "sequence"),
             counted(report.rows, "row"), counted(arguments.shards, "shard"), kept_note(report.kept));
  fmt::print("{:.5f} sequences in a row, {:.2f} % of the tokens are no padding, {} in {}, {}\n", sequences / rows,
             100.0 * static_cast<double>(report.tokens) / (rows * report.max_length),
             counted(report.strategies_used, "strategy", "strategies"), counted(report.rounds, "round"),
             counted(report.padding_slots, "empty slot"));
  fmt::print("done in {}\n", format_duration(steady_seconds() - start));
}

void add_bert_pack(CLI::App& tool) {
  auto arguments = std::make_shared<BertPackArguments>();
  CLI::App* command = tool.add_subcommand("pack",
                                          "Pack instances into rows of up to three sequences, as "
                                          "shards part_00000 …; resumes after an interruption");
  add_instances_input(*command, arguments->inputs);
  command->add_option("--output", arguments->output, "Directory for the shards")->required();
  command->add_option("--shards", arguments->shards, "Number of shards (default 4320)");
  command->add_option("--seed", arguments->seed, "Seed of Python's random.Random (default 12345)");
  command->add_option("--threads", arguments->threads, "Threads (default: one per core)");
  command->callback([arguments] { run_bert_pack(*arguments); });
}

// ---- eval

struct EvalArguments {
  fs::path input, vocab, output;
  BertInstanceOptions options;
  int64_t count = 10000;
};

void print_checksum(const fs::path& path, const BertChecksum& sum) {
  fmt::print("{}: {}, {}, {}, {} masked; md5 of the samples {}\n", path.string(), counted(sum.rows, "row"),
             counted(sum.sequences, "sequence"), counted(sum.tokens, "token"), format_count(sum.masked), sum.md5);
}

void eval(const EvalArguments& arguments) {
  warn_of_vocabulary(arguments.vocab, arguments.options.cased);
  const int64_t all =
      create_bert_eval(arguments.input, arguments.vocab, arguments.options, arguments.count, arguments.output);
  const BertChecksum sum =
      checksum_bert_file(arguments.output, arguments.options.seq_length, BertVocab(arguments.vocab).size());
  fmt::print("took {} of {}\n", format_count(arguments.count), counted(all, "instance"));
  print_checksum(arguments.output, sum);
  if (sum.md5 == kMlperfBertEvalMd5)
    fmt::print("match: this is MLPerf's evaluation set\n");
  else if (arguments.count == 10000)
    fmt::print("not MLPerf's evaluation set, whose samples have {}\n", kMlperfBertEvalMd5);
}

void add_eval(CLI::App& tool) {
  auto arguments = std::make_shared<EvalArguments>();
  CLI::App* command =
      tool.add_subcommand("eval", "Make the evaluation set of one text: evenly picked instances, not packed");
  command->add_option("--input", arguments->input, "eval.txt")->required();
  command->add_option("--vocab", arguments->vocab, "vocab.txt")->required();
  command->add_option("--output", arguments->output, "The file to write: part_eval_10k.hdf5")->required();
  command->add_option("--count", arguments->count, "Samples (default 10000)");
  add_instance_options(*command, arguments->options);
  command->callback([arguments] { eval(*arguments); });
}

// ---- export

struct ExportArguments {
  std::vector<fs::path> inputs;
  fs::path output;
  std::string layout = "varlength";
  BertExportOptions options;
};

void export_instances(ExportArguments& arguments) {
  arguments.options.layout = arguments.layout == "fixed" ? BertLayout::kFixed : BertLayout::kVarlength;
  const double start = steady_seconds();
  const BertExportReport report = export_bert(arguments.inputs, arguments.output, arguments.options);
  fmt::print("{}: {} in {}{}, done in {}\n", arguments.output.string(), counted(report.instances, "instance"),
             counted(report.files, "file"), kept_note(report.kept), format_duration(steady_seconds() - start));
}

void add_export(CLI::App& tool) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = tool.add_subcommand(
      "export", "Write instances as unpacked HDF5 of fixed or variable length, for runs and tools that read it");
  add_instances_input(*command, arguments->inputs);
  command->add_option("--output", arguments->output, "Directory for the files")->required();
  command->add_option("--layout", arguments->layout, "Of the rows (default varlength)")
      ->check(CLI::IsMember({"fixed", "varlength"}));
  command->add_option("--shards", arguments->options.shards,
                      "Number of files, 4320 in MLPerf's data (default: one a part)");
  command->add_option("--shuffle-seed", arguments->options.shuffle_seed,
                      "Shuffle over all shards, 24 in MLPerf's data (default: not)");
  command->add_option("--threads", arguments->options.threads, "Threads (default: one per core)");
  command->callback([arguments] { export_instances(*arguments); });
}

// ---- verify

struct VerifyArguments {
  std::vector<fs::path> inputs;
  int64_t seq_length = 512, vocab_size = 30522;
};

void verify(const VerifyArguments& arguments) {
  int64_t rows = 0, sequences = 0;
  const std::vector<fs::path> parts = list_parts(arguments.inputs, "part_", "");
  for (const fs::path& path : parts) {
    const BertChecksum sum = checksum_bert_file(path, arguments.seq_length, arguments.vocab_size);
    print_checksum(path, sum);
    rows += sum.rows;
    sequences += sum.sequences;
  }
  fmt::print("{}, {}, {}: no damage found\n", counted(parts.size(), "file"), counted(rows, "row"),
             counted(sequences, "sequence"));
}

void add_verify(CLI::App& tool) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = tool.add_subcommand("verify",
                                          "Check every row of packed or variable-length files as the trainer does, "
                                          "and print MLPerf's checksum of their samples");
  command->add_option("--input", arguments->inputs, "Files, or directories of files named part_*")->required();
  command->add_option("--seq-length", arguments->seq_length, "Longest row in tokens (default 512)");
  command->add_option("--vocab-size", arguments->vocab_size,
                      "Size of the vocabulary: token ids must be below it (default 30522)");
  command->callback([arguments] { verify(*arguments); });
}

}  // namespace

void add_bert_data_tool(CLI::App& data) {
  CLI::App* tool = data.add_subcommand("bert", "BERT's pre-training data: instances, pack, eval, export, verify");
  tool->require_subcommand(1);
  add_instances(*tool);
  add_bert_pack(*tool);
  add_eval(*tool);
  add_export(*tool);
  add_verify(*tool);
}

}  // namespace trireme
