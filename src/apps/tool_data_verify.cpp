// `trireme data verify`: reads every row that a run could read.
#include "tools.h"

#include "data/bert/bert_rows.h"
#include "data/dataset.h"
#include "data/megatron/megatron_dataset.h"
#include "data/prepare/progress.h"
#include "data/row_scan.h"
#include "data/stream/open_stream.h"
#include "models/bert/files.h"
#include "models/decoder/config.h"
#include "trireme/base/error.h"
#include "trireme/base/plural.h"
#include "trireme/base/text.h"
#include "trireme/config/config.h"
#include "trireme/formats/huggingface/bert_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;

struct VerifyArguments {
  std::string config, model;
  std::vector<std::string> overrides, files;
  std::optional<int64_t> seq_length, vocab_size;
  bool bert = false;
  int threads = 0;
  size_t show = 20;
};

/// The limits that rows are checked against.
struct Shape {
  bool bert = false;
  int64_t vocab_size = 0;
};

Shape shape_of(const fs::path& model, bool bert) {
  if (bert) return {true, read_bert_config(bert_config_path(model)).vocab_size};
  try {
    return {false, (fs::is_regular_file(model) ? read_decoder_config(model) : read_model_config(model)).vocab_size};
  } catch (const ModelError&) {
    try {
      return {true, read_bert_config(bert_config_path(model)).vocab_size};
    } catch (const ModelError&) {
      // not BERT either: report the first error
    }
    throw;
  }
}

/// Data sets and the rows to read from them.
struct OpenData {
  std::vector<std::unique_ptr<TokenDataset>> tokens;
  std::vector<std::unique_ptr<BertDataset>> rows;
  std::vector<RowSet> sets;

  /// Every document of every file, whatever splits and index maps make of them.
  void add_megatron(const std::string& name, const std::vector<fs::path>& paths, const Shape& shape) {
    for (const fs::path& path : paths) {
      const auto file = std::make_shared<const MegatronFile>(path);
      const auto check = [file, vocab = shape.vocab_size](int64_t document) {
        check_megatron_document(*file, document, vocab);
      };
      sets.push_back({name, file->sequences(), {}, check, "documents"});
      fmt::print("{}: {}: {}, {} ({})\n", name, file->prefix().string(), counted(file->sequences(), "document"),
                 counted(file->tokens(), "token"), megatron_type_name(file->type()));
    }
  }

  /// `tokenizer`, `column`: of text among documents.
  void add(const std::string& name, const std::vector<std::string>& files, const Shape& shape, int64_t seq_length,
           const fs::path& tokenizer, const std::string& column = "") {
    const std::vector<fs::path> paths(files.begin(), files.end());
    if (!shape.bert && are_documents(name, paths)) {
      const auto stream = open_token_stream({name, paths, {}, {}, column, tokenizer},
                                            {.seq_length = seq_length, .vocab_size = shape.vocab_size});
      sets.push_back(document_rows(name, stream));
      fmt::print("{}: {} of {}\n", name, counted(sets.back().rows, "document"), stream->parts()[0].documents->kind());
      return;
    }
    if (!shape.bert && megatron_index_path(paths.front())) return add_megatron(name, paths, shape);
    if (shape.bert) {
      const BertDataset& data = *rows.emplace_back(open_bert_dataset(paths, seq_length, shape.vocab_size));
      sets.push_back({name, data.size(), data.shard_rows(), [&data](int64_t row) { (void)data.read(row); }});
      fmt::print("{}: {}\n", name, data.description());
    } else {
      const TokenDataset& data = *tokens.emplace_back(open_token_dataset(paths, seq_length, shape.vocab_size));
      sets.push_back({name, data.size(), {}, [&data](int64_t row) { (void)data.read(row); }});
      fmt::print("{}: {}\n", name, data.description());
    }
  }
};

OpenData open_all(const VerifyArguments& arguments) {
  OpenData data;
  if (!arguments.config.empty()) {
    if (!arguments.files.empty() || !arguments.model.empty() || arguments.seq_length || arguments.vocab_size)
      throw ConfigError("--config names the files, their length and the model: give no other option except --set");
    const Config config = load_config(arguments.config, arguments.overrides);
    const Shape shape = shape_of(config.model.path, arguments.bert);
    const fs::path tokenizer = fs::path(config.model.path);
    const auto add = [&](const char* name, const std::vector<std::string>& files) {
      data.add(name, files, shape, config.data.seq_length, tokenizer, config.data.column.value_or(""));
    };
    if (config.data.train.front() == "mock")
      throw ConfigError("data.train is mock: random ids, of which there is nothing to verify");
    add("data.train", config.data.train);
    if (!config.data.valid.empty()) add("data.valid", config.data.valid);
    return data;
  }
  if (arguments.files.empty() || !arguments.seq_length || arguments.model.empty() == !arguments.vocab_size)
    throw ConfigError(
        "give --config FILE of a run, or files with --seq-length and either --model or --vocab-size (see trireme data "
        "verify --help)");
  const Shape shape = arguments.model.empty() ? Shape{arguments.bert, *arguments.vocab_size}
                                              : shape_of(arguments.model, arguments.bert);
  data.add("files", arguments.files, shape, *arguments.seq_length, fs::path(arguments.model));
  return data;
}

void verify(const VerifyArguments& arguments) {
  OpenData data = open_all(arguments);
  int64_t rows = 0;
  for (const RowSet& set : data.sets) rows += set.rows;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  RowScan scan(std::move(data.sets),
               {.threads = arguments.threads > 0 ? arguments.threads : cores, .all = true, .keep = arguments.show});
  Progress progress("checking", static_cast<double>(rows), "rows");
  const RowScanReport report = scan.finish(std::numeric_limits<double>::infinity(),
                                           [&](int64_t done) { progress.update(static_cast<double>(done)); });
  progress.finish();
  if (report.bad_rows == 0) {
    fmt::print("{}\n", report.summary());
    return;
  }
  for (const BadRow& bad : report.first_bad) fmt::print("{}\n", bad.what);
  if (report.bad_rows > static_cast<int64_t>(report.first_bad.size()))
    fmt::print("… and {} more\n", format_count(report.bad_rows - static_cast<int64_t>(report.first_bad.size())));
  throw DataError(fmt::format("{} of {} {} are bad, the first: {}", format_count(report.bad_rows),
                              format_count(report.rows), report.unit, report.first_bad.front().what));
}

}  // namespace

void add_data_verify_tool(CLI::App& data) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = data.add_subcommand(
      "verify", "Read every row of data sets as training would: lengths, token ids, masks, sequence starts");
  command->add_option("files", arguments->files, "Data files, or directories of BERT shards");
  command->add_option("--config", arguments->config, "A run's configuration: its data.train and data.valid");
  command->add_option("--set", arguments->overrides, "With --config: override one key, section.key=value")
      ->allow_extra_args(false);
  command->add_option("--model", arguments->model, "Model directory: token ids must be in its vocabulary");
  command->add_option("--vocab-size", arguments->vocab_size, "Size of the vocabulary: token ids must be below it")
      ->check(CLI::PositiveNumber);
  command->add_option("--seq-length", arguments->seq_length, "Tokens of a row (BERT: at most)")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  command->add_flag("--bert", arguments->bert, "Rows of train_bert (with --model: detected)");
  command->add_option("--threads", arguments->threads, "Threads (default: one per core)")->check(CLI::Range(1, 1024));
  command->add_option("--show", arguments->show, "Bad rows to list (default 20)")->check(CLI::Range(1, 1000000));
  command->callback([arguments] { verify(*arguments); });
}

}  // namespace trireme
