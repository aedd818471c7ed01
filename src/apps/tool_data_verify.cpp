// `trireme data verify`: reads every row that a run could read.
#include "tools.h"

#include "data/bert/bert_rows.h"
#include "data/prepare/progress.h"
#include "data/rows.h"
#include "models/bert/files.h"
#include "models/decoder/config.h"
#include "models/decoder/vocabulary.h"
#include "trireme/base/error.h"
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
  int64_t vocab_size = 0, segments = 2;
};

Shape bert_shape_of(const fs::path& model) {
  const BertConfig config = read_bert_config(bert_config_path(model));
  return {true, config.vocab_size, config.type_vocab_size};
}

Shape shape_of(const fs::path& model, bool bert) {
  if (bert) return bert_shape_of(model);
  try {
    return {false, read_model_shape(model).vocab_size};
  } catch (const ModelError&) {
    try {
      return bert_shape_of(model);
    } catch (const ModelError&) {
      // not BERT either: report the first error
    }
    throw;
  }
}

/// What is to be checked, said on the way.
std::vector<RowSet> contents(const ContentsRequest& request, const Shape& shape) {
  const RowContents found = [&]() -> RowContents {
    if (!shape.bert || request.entries.front() == "mock")
      return row_format(request.name, request.entries).contents(request);
    const std::shared_ptr<const BertDataset> data =
        open_bert_dataset(to_paths(request.entries), request.seq_length, shape.vocab_size, shape.segments);
    return {{{request.name, data->size(), data->shard_rows(), [data](int64_t row) { (void)data->read(row); }}},
            {data->description()}};
  }();
  for (const std::string& text : found.texts) fmt::print("{}: {}\n", request.name, text);
  return found.sets;
}

std::vector<RowSet> open_all(const VerifyArguments& arguments) {
  if (!arguments.config.empty()) {
    if (!arguments.files.empty() || !arguments.model.empty() || arguments.seq_length || arguments.vocab_size)
      throw ConfigError("--config names the files, their length and the model: give no other option except --set");
    const Config config = load_config(arguments.config, arguments.overrides);
    Shape shape = shape_of(config.model.path, arguments.bert);
    if (!shape.bert) shape.vocab_size = resized_vocab(shape.vocab_size, config.model.vocab_size, std::nullopt);
    std::vector<RowSet> sets;
    for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
      const SplitKeys keys = split_keys(config, split);
      if (keys.files.empty() || (split != Split::kTrain && (config.data.splits || keys.files.front() == "mock")))
        continue;
      for (RowSet& set : contents({keys.key, keys.files, config.data.seq_length, shape.vocab_size, config.model.path,
                                   config.data.column.value_or("")},
                                  shape))
        sets.push_back(std::move(set));
    }
    return sets;
  }
  if (arguments.files.empty() || !arguments.seq_length || arguments.model.empty() == !arguments.vocab_size)
    throw ConfigError(
        "give --config FILE of a run, or files with --seq-length and either --model or --vocab-size (see trireme data "
        "verify --help)");
  const Shape shape = arguments.model.empty() ? Shape{arguments.bert, *arguments.vocab_size}
                                              : shape_of(arguments.model, arguments.bert);
  return contents({"files", arguments.files, *arguments.seq_length, shape.vocab_size, arguments.model, ""}, shape);
}

void verify(const VerifyArguments& arguments) {
  const std::vector<RowSet> sets = open_all(arguments);
  int64_t rows = 0;
  for (const RowSet& set : sets) rows += set.rows;
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  RowScan scan(sets,
               {.threads = arguments.threads > 0 ? arguments.threads : cores, .all = true, .keep = arguments.show});
  Progress progress("checking", static_cast<double>(rows), "rows");
  const RowScanReport report = scan.finish(std::numeric_limits<double>::infinity(),
                                           [&](int64_t done) { progress.update(static_cast<double>(done)); });
  progress.finish();
  if (report.bad_rows == 0) {
    for (const RowSet& set : sets)
      if (const std::string lack = set.lack ? set.lack() : ""; !lack.empty()) throw DataError(lack);
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
  command->add_option("--config", arguments->config, "A run's configuration: its data.train, data.valid and data.test");
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
