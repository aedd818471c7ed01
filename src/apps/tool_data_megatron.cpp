// `trireme data megatron`: texts to Megatron's indexed files; merging and showing them.
#include "tools.h"

#include "data/prepare/megatron_pack.h"
#include "data/tokenizer/packed_with.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/hash.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/formats/megatron/indexed_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;

struct MegatronArguments {
  MegatronPackOptions options;
  std::vector<std::string> merge;
  std::string tokenizer, show, split_sentences = "no";
};

/// Hash of the files that decide what is encoded: an interrupted run continues only with equal settings.
uint64_t fingerprint(const fs::path& path) {
  std::vector<fs::path> files = tokenizer_files(path);
  const fs::path model = files.at(0).parent_path() / "config.json";  // whose family decides, too
  if (std::error_code error; fs::is_regular_file(model, error)) files.push_back(model);
  uint64_t hash = 0;
  for (const fs::path& file : files) {
    const std::string bytes = file.filename().string() + '\n' + read_text_file(file, ExitCode::kData, size_t{1} << 30);
    hash = xxh3_64(bytes.data(), bytes.size(), hash);
  }
  return hash;
}

DocumentEncoder encoder_of(const std::shared_ptr<const Tokenizer>& tokenizer, const fs::path& path) {
  return {.encode = [tokenizer](std::string_view text) { return tokenizer->encode(text); },
          .vocab_size = tokenizer->vocab_size(),
          .eod = tokenizer->eos_id(),
          .fingerprint = fingerprint(path)};
}

void show(const MegatronArguments& arguments) {
  const MegatronFile file{fs::path(arguments.show)};
  int64_t shortest = file.sequences() > 0 ? std::numeric_limits<int64_t>::max() : 0, longest = 0;
  for (int64_t i = 0; i < file.sequences(); ++i) {
    shortest = std::min<int64_t>(shortest, file.length(i));
    longest = std::max<int64_t>(longest, file.length(i));
  }
  fmt::print("{}: {} of type {} in {} ({} of {} to {} tokens, {:.1f} on average){}\n", file.prefix().string(),
             counted(file.tokens(), "token"), megatron_type_name(file.type()), counted(file.documents(), "document"),
             counted(file.sequences(), "sequence"), format_count(shortest), format_count(longest),
             static_cast<double>(file.tokens()) / static_cast<double>(std::max<int64_t>(file.sequences(), 1)),
             file.has_modes() ? ", with modes" : "");
  if (file.sequences() == 0) return;
  constexpr int64_t kShown = 64;
  std::vector<int64_t> ids;
  file.read(0, 0, std::min<int64_t>(kShown, file.length(0)), ids);
  fmt::print("first document: {}{}\n", fmt::join(ids, " "), file.length(0) > kShown ? " …" : "");
  if (!arguments.tokenizer.empty())
    fmt::print("its text: {}\n",
               Tokenizer(fs::path(arguments.tokenizer)).decode(std::vector<int32_t>(ids.begin(), ids.end())));
}

void merge(const MegatronArguments& arguments) {
  if (arguments.options.output_prefix.empty()) throw ConfigError("data megatron: --merge needs --output-prefix");
  const int64_t documents =
      merge_megatron({arguments.merge.begin(), arguments.merge.end()}, arguments.options.output_prefix);
  fmt::print("{}.bin, .idx: {} of {}\n", arguments.options.output_prefix.string(), counted(documents, "document"),
             counted(arguments.merge.size(), "file"));
}

void pack(const MegatronArguments& arguments) {
  const MegatronPackOptions& options = arguments.options;
  if (arguments.tokenizer.empty() || options.output_prefix.empty())
    throw ConfigError("data megatron: --input needs --tokenizer and --output-prefix");
  if (arguments.split_sentences != "no")
    throw ConfigError(fmt::format(
        "--split-sentences {}: documents are one sequence each, as GPT reads them; expected no (BERT's data is made by "
        "trireme data bert)",
        arguments.split_sentences));
  const auto tokenizer = std::make_shared<const Tokenizer>(fs::path(arguments.tokenizer));
  const double start = steady_seconds();
  const MegatronPackReport report = pack_megatron(encoder_of(tokenizer, arguments.tokenizer), options);
  const double seconds = steady_seconds() - start;
  write_packed_with(report.prefix, *tokenizer, arguments.tokenizer);
  fmt::print("{}.bin, .idx: {}, {} ({} ids: {})\n", report.prefix.string(), counted(report.documents, "document"),
             counted(report.tokens, "token"), format_count(tokenizer->vocab_size()),
             megatron_type_name(megatron_type_for(tokenizer->vocab_size())));
  if (report.kept_parts > 0)
    fmt::print("{} of {} parts were there from a run that was stopped\n", report.kept_parts, report.parts);
  if (report.empty > 0) fmt::print("skipped {} without tokens\n", counted(report.empty, "document"));
  if (report.invalid_utf8 > 0)
    fmt::print("skipped {} not encoded in UTF-8, the first at {}\n", counted(report.invalid_utf8, "document"),
               report.first_invalid);
  fmt::print("{} of text in {}", format_bytes(report.bytes), format_duration(seconds));
  if (report.kept_parts == 0) fmt::print(", {:.2f} MB/s", static_cast<double>(report.bytes) / 1e6 / seconds);
  fmt::print("\n");
}

}  // namespace

void add_megatron_data_tool(CLI::App& data) {
  auto arguments = std::make_shared<MegatronArguments>();
  MegatronPackOptions& options = arguments->options;
  CLI::App* command = data.add_subcommand("megatron",
                                          "Tokenise JSON lines, Parquet or Arrow to Megatron's indexed files "
                                          "PREFIX_text_document.bin and .idx; merge such files; show one");
  auto* input = command->add_option(
      "--input", options.inputs,
      "Files to read, in this order: .jsonl, .json, .ndjson (one object a line), also .gz, .zst, .bz2; Parquet, Arrow");
  command->add_option("--text-key,--field", options.text_key, "Field or column that holds the text (default text)");
  command->add_option("--tokenizer", arguments->tokenizer, "Tokenizer: a file, or a directory that has one");
  command->add_option("--output-prefix", options.output_prefix, "Beginning of the names of the files to write");
  command->add_flag("--append-eod", options.append_eod, "The tokenizer's end-of-document id after every document");
  command->add_option("--workers", options.workers, "Threads (default: one per core); the files do not depend on it");
  command->add_option("--split-sentences", arguments->split_sentences, "no: a document is one sequence");
  auto* merged =
      command->add_option("--merge", arguments->merge, "Prefixes to merge, in this order, into --output-prefix");
  auto* shown = command->add_option("--show", arguments->show, "Prefix to describe: counts, type, first document");
  input->excludes(merged)->excludes(shown);
  merged->excludes(shown)->excludes(command->get_option("--tokenizer"));
  shown->excludes(command->get_option("--output-prefix"));
  for (const char* name : {"--text-key", "--append-eod", "--workers", "--split-sentences"})
    command->get_option(name)->excludes(merged)->excludes(shown);
  command->callback([arguments] {
    if (!arguments->show.empty()) return show(*arguments);
    if (!arguments->merge.empty()) return merge(*arguments);
    if (arguments->options.inputs.empty())
      throw ConfigError("give --input FILES, --merge PREFIXES or --show PREFIX (see trireme data megatron --help)");
    pack(*arguments);
  });
}

}  // namespace trireme
