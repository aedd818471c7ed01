#include "data/rows.h"

#include "data/megatron/index_maps.h"
#include "data/text_file.h"
#include "data/tokenizer/tokenizer.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace trireme {

extern const RowFormat kMockRows, kMegatronRows, kDocumentRows, kPackedRows;

const std::vector<const RowFormat*>& row_formats() {
  static const std::vector<const RowFormat*> formats = {&kMockRows, &kMegatronRows, &kDocumentRows, &kPackedRows};
  return formats;
}

namespace {

/// DataError, which names all entries of `key` that are not there.
void require_there(const std::string& key, const std::vector<std::string>& entries) {
  std::vector<std::string> absent;
  std::error_code error;
  // The last format holds any entry.
  for (const std::string& entry : entries)
    if (!std::filesystem::exists(entry, error) && &row_format(entry) == row_formats().back()) absent.push_back(entry);
  if (absent.empty()) return;
  // A blend as NeMo writes it: a weight before each path.
  const auto weight = [](const std::string& entry) {
    return parse_whole<double>(std::filesystem::path(entry).filename().string());
  };
  if (key == "data.train" && entries.size() > 1 && weight(entries[0]) && !weight(entries[1]))
    throw DataError(fmt::format("{}: {} {} not there. A weight is written beside its path: - {{path: {}, weight: {}}}",
                                key, join(absent, " and "), absent.size() == 1 ? "is" : "are", entries[1],
                                *weight(entries[0])));
  std::filesystem::path prefix = absent.front();
  static const std::set<std::string> kOfOtherFiles = {".npy",   ".h5",      ".hdf5",  ".json",
                                                      ".jsonl", ".parquet", ".arrow", ".idx"};
  const bool other = kOfOtherFiles.contains(prefix.extension().string());
  if (prefix.extension() == ".bin") prefix.replace_extension();
  const std::string index = other ? "" : fmt::format(", nor is {}.idx, the index of Megatron's files", prefix.string());
  throw DataError(
      fmt::format("{}: {} {} not there{}", key, join(absent, " and "), absent.size() == 1 ? "is" : "are", index));
}

}  // namespace

const RowFormat& row_format(const std::string& entry) {
  return **std::find_if(row_formats().begin(), row_formats().end(),
                        [&](const RowFormat* format) { return format->holds(entry); });
}

const RowFormat& row_format(const std::string& key, const std::vector<std::string>& entries) {
  require_there(key, entries);
  const RowFormat& first = row_format(entries.front());
  for (const std::string& entry : entries)
    if (const RowFormat& other = row_format(entry); &other != &first)
      throw ConfigError(fmt::format("{} has {} ({}) and {} ({}): a set of rows is made of one kind", key, first.what,
                                    entries.front(), other.what, entry));
  return first;
}

SplitKeys split_keys(const Config& config, Split split) {
  static const std::vector<std::string> none;
  const DataSection& data = config.data;
  const EvalSection& eval = config.eval;
  switch (split) {
    case Split::kTrain: return {"data.train", "train.max_steps", data.train, std::nullopt};
    case Split::kValid:
      // A part with the share 0 is there only where something asks for it, and is refused then.
      if (data.splits) {
        const bool there = split_shares(*data.splits)[1] > 0 || !keys_of_evaluation(config).empty();
        return {"the validation part of data.train", "eval.samples", there ? data.train : none, eval.samples};
      }
      return {"data.valid", "eval.samples", data.valid, eval.samples};
    default:
      if (!data.splits) return {"data.test", "eval.test_samples", data.test, eval.test_samples};
      // The last part is a test only where its rows are asked for.
      return {"the test part of data.train", "eval.test_samples", eval.test_samples ? data.train : none,
              eval.test_samples};
  }
}

int64_t rows_to_evaluate(const Config& config, Split split, int64_t there) {
  const SplitKeys keys = split_keys(config, split);
  if (keys.samples.value_or(0) > there)
    throw ConfigError(
        fmt::format("{} {} is more than the {} rows of {}", keys.samples_key, *keys.samples, there, keys.key));
  return keys.samples.value_or(there);
}

std::vector<std::filesystem::path> to_paths(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

namespace {

/// Texts that a tool makes rows of.
void refuse_texts(const Config& config, const SplitKeys& keys) {
  if (config.data.column) return;
  for (const std::string& entry : keys.files) {
    const std::vector<std::string> files = row_format(entry).files(entry);
    if (files.empty()) continue;
    const std::string& file = files.front();
    const std::set<std::string> there = fields_there(file);
    const bool ids_there = there.contains("tokens") || there.contains("input_ids");
    if (there.contains("text") || (ids_there && !is_json(file))) continue;
    const RowTool* tool = find_row_tool([&](const char* field) { return there.contains(field); });
    if (!tool) {
      if (ids_there)
        throw DataError(fmt::format(
            "{}: holds token ids ('{}'), which are read from Parquet and Arrow, not from JSON: write them as Parquet",
            file, there.contains("tokens") ? "tokens" : "input_ids"));
      continue;
    }
    const std::string rows = std::filesystem::path(entry).stem().string() + ".npy";
    throw DataError(fmt::format(
        "{}: holds {} ('{}'). Make rows of them{}: trireme data {} --model '{}' --input '{}' --seq-length {} --output "
        "{}; then set {} to {}",
        entry, tool->what, tool->field, tool->once, tool->name, config.model.path, entry, config.data.seq_length, rows,
        keys.key, rows));
  }
}

/// Keys that are set and have a meaning for other formats only.
void refuse_keys(const Config& config, const RowFormat& format) {
  const std::string keys = keys_without_meaning(config, format.keys), &first = config.data.train.front();
  if (keys.empty()) return;
  // The formats that the keys are for: one that all are for, else all that some are for.
  std::vector<std::string> others;
  DataKinds seen = format.keys;
  for (auto other = row_formats().rbegin(); other != row_formats().rend(); ++other) {
    const std::string theirs = keys_without_meaning(config, format.keys, (*other)->keys);
    if (theirs.empty() || ((*other)->keys & seen) != 0) continue;
    seen |= (*other)->keys;
    if (theirs == keys) others.clear();
    others.emplace_back((*other)->what);
    if (theirs == keys) break;
  }
  throw ConfigError(
      fmt::format("{}: for {}, but {} is read as {}: leave it out", keys, join(others, " and "), first, format.what));
}

}  // namespace

SplitRows<Sample> open_rows(const Config& config, Split split, const RowFormat& train, const RowReader& reader) {
  const SplitKeys keys = split_keys(config, split);
  if (keys.files.empty()) return {};
  refuse_texts(config, keys);
  if (split == Split::kTrain) refuse_keys(config, train);
  const RowFormat& format = &keys.files == &config.data.train ? train : row_format(keys.key, keys.files);
  if (config.train.objective != TrainSection::Objective::kSft && !format.pairs)
    throw ConfigError(
        fmt::format("train.objective {} is for rows of pairs, but {}, {}, has {}: make rows with `trireme data "
                    "preference`",
                    word_of(config.train.objective), keys.key, keys.files.front(), format.what));
  if (format.labels != train.labels)
    throw ConfigError(fmt::format("{}, {}, has {} and data.train has {}: both are of one kind", keys.key,
                                  keys.files.front(), format.what, train.what));
  return format.open(config, split, reader);
}

void fill_row_caches(const Config& config) { row_format(config.data.train.front()).fill_caches(config); }

std::vector<std::string> row_files(const std::vector<std::string>& entries) {
  std::vector<std::string> files;
  if (entries.empty()) return files;
  const RowFormat& format = row_format(entries.front());
  for (const std::string& entry : entries)
    for (std::string& file : format.files(entry)) files.push_back(std::move(file));
  return files;
}

std::vector<std::filesystem::path> row_tokenizer(const Config& config) {
  if (!row_format(config.data.train.front()).tokenises(config)) return {};
  return tokenizer_files(config.model.path);
}

std::vector<std::string> changed_row_order(const Config& before, const Config& now) {
  return row_format(now.data.train.front()).changed_order(before, now);
}

}  // namespace trireme
