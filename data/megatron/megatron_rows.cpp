// Rows of Megatron's indexed files, as a configuration asks for them.
#include "data/megatron/megatron_dataset.h"
#include "data/rows.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/rounding.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

namespace trireme {

namespace {

MegatronOptions megatron_options(const Config& config, int64_t vocab_size) {
  const DataSection& data = config.data;
  if (data.eos_token && *data.eos_token >= vocab_size)
    throw ConfigError(
        fmt::format("data.eos_token {} is outside the model's vocabulary of {}", *data.eos_token, vocab_size));
  return {.seq_length = data.seq_length,
          .vocab_size = vocab_size,
          .seed = static_cast<uint32_t>(config.train.seed),
          .shuffle = data.shuffle,
          .rules = data.index_rules == DataSection::IndexRules::kCore ? IndexRules::kCore : IndexRules::kNemo,
          .splits = data.splits,
          .index_cache = data.index_cache.value_or(""),
          .eod = data.eos_token,
          .reset_position_ids = data.reset_position_ids,
          .reset_attention_mask = data.reset_attention_mask,
          .eod_mask_loss = data.eod_mask_loss};
}

int64_t train_samples(const Config& config) { return config.train.max_steps * config.batch.global_batch_size; }

/// The number of rows for which Megatron builds the maps of an evaluated split: the rows of all evaluations, although
/// each evaluation reads the first rows; a test is evaluated once. 0: all documents once, which is enough without
/// shuffling.
int64_t evaluated_samples(const Config& config, Split split) {
  const SplitKeys keys = split_keys(config, split);
  if (!keys.samples || !config.eval.shuffle) return 0;
  int64_t evaluations = 1;
  if (split == Split::kValid && config.eval.every_samples)
    evaluations += config.train.max_steps / ceil_div(*config.eval.every_samples, config.batch.global_batch_size);
  int64_t samples = 0;
  if (__builtin_mul_overflow(evaluations, *keys.samples, &samples))
    throw ConfigError(fmt::format("{} evaluations of {} {} are more than a run can count", evaluations,
                                  keys.samples_key, *keys.samples));
  return samples;
}

std::shared_ptr<const MegatronDataset> open_train_files(const Config& config, int64_t vocab_size) {
  const DataSection& data = config.data;
  if (data.train.size() > 1 && data.weights.empty())
    throw ConfigError("data.train lists several of Megatron's files: give each a weight, as {path: …, weight: 0.3}");
  return open_megatron_dataset({to_paths(data.train), data.weights}, Split::kTrain, train_samples(config),
                               megatron_options(config, vocab_size));
}

std::shared_ptr<const MegatronDataset> open_evaluated_files(const Config& config, Split split, int64_t vocab_size) {
  const DataSection& data = config.data;
  const SplitKeys keys = split_keys(config, split);
  const bool divided = data.splits.has_value();
  if (!divided && keys.files.size() > 1)
    throw ConfigError(
        fmt::format("{} lists several of Megatron's files: name one, or divide data.train with data.splits", keys.key));
  const int64_t samples = evaluated_samples(config, split);
  if (keys.files.size() > 1 && samples == 0)
    throw ConfigError(
        fmt::format("data.splits of a blend needs {}, the rows of an evaluation, and eval.shuffle", keys.samples_key));
  MegatronOptions options = megatron_options(config, vocab_size);
  options.shuffle = options.shuffle && config.eval.shuffle;
  return open_megatron_dataset({to_paths(keys.files), divided ? data.weights : std::vector<double>()}, split, samples,
                               options);
}

/// Where no document ends with data.eos_token, Megatron's flags change nothing.
void warn_of_absent_ends(const DataSection& data) {
  if (!data.eos_token || !(data.reset_position_ids || data.reset_attention_mask || data.eod_mask_loss)) return;
  constexpr int64_t kRead = 1000;
  for (const std::string& path : data.train) {
    const MegatronFile file(path);
    std::vector<int64_t> ends;
    for (int64_t s = 0; s < std::min(kRead, file.sequences()); ++s)
      if (file.length(s) > 0) file.read(s, file.length(s) - 1, 1, ends);
    if (ends.empty() || std::ranges::find(ends, *data.eos_token) != ends.end()) continue;
    log_run_warn(
        fmt::format("{}: none of the first {} ends with data.eos_token {}, so data.reset_position_ids, "
                    "data.reset_attention_mask and data.eod_mask_loss change nothing there: is it another id, or were "
                    "the files made without --append-eod?",
                    path, counted(ends.size(), "document"), *data.eos_token));
  }
}

SplitRows<Sample> open_megatron_rows(const Config& config, Split split, const RowReader& reader) {
  const bool train = split == Split::kTrain;
  const auto files =
      train ? open_train_files(config, reader.vocab_size) : open_evaluated_files(config, split, reader.vocab_size);
  if (train) warn_of_absent_ends(config.data);
  SplitRows<Sample> rows;
  rows.read = [files](int64_t index) { return files->read(index); };
  rows.rows = rows.samples = train ? files->rows_per_epoch() : rows_to_evaluate(config, split, files->size());
  rows.sets.push_back({split_keys(config, split).key,
                       files->documents(),
                       {},
                       [files](int64_t document) { files->check_document(document); },
                       "documents"});
  rows.description = files->description();
  return rows;
}

/// Every document of every file, whatever splits and index maps make of them.
RowContents megatron_contents(const ContentsRequest& request) {
  RowContents contents;
  for (const std::string& path : request.entries) {
    const auto file = std::make_shared<const MegatronFile>(path);
    const auto check = [file, vocab = request.vocab_size](int64_t document) {
      check_megatron_document(*file, document, vocab);
    };
    contents.sets.push_back({request.name, file->sequences(), {}, check, "documents"});
    contents.texts.push_back(fmt::format("{}: {}, {} ({})", file->prefix().string(),
                                         counted(file->sequences(), "document"), counted(file->tokens(), "token"),
                                         megatron_type_name(file->type())));
  }
  return contents;
}

/// The sets that a run reads through index maps.
std::map<Split, std::shared_ptr<const MegatronDataset>> indexed_sets(const Config& config) {
  std::map<Split, std::shared_ptr<const MegatronDataset>> sets;
  constexpr int64_t kAnyId = std::numeric_limits<int64_t>::max();  // no row is read
  const RowFormat& megatron = row_format("data.train", config.data.train);
  sets[Split::kTrain] = open_train_files(config, kAnyId);
  for (const Split split : {Split::kValid, Split::kTest}) {
    const SplitKeys keys = split_keys(config, split);
    if (!keys.files.empty() && &row_format(keys.key, keys.files) == &megatron)
      sets[split] = open_evaluated_files(config, split, kAnyId);
  }
  return sets;
}

void fill_index_caches(const Config& config) {
  for (const auto& [split, set] : indexed_sets(config)) set->fill_cache();
}

/// Megatron's order depends on the number of steps and of evaluated rows.
std::vector<std::string> changed_orders(const Config& before, const Config& now) {
  Config earlier = now;  // whose paths are those of this start
  earlier.train.max_steps = before.train.max_steps;
  earlier.eval = before.eval;
  if (earlier == now) return {};
  std::vector<std::string> sentences;
  const auto sets = indexed_sets(now), earlier_sets = indexed_sets(earlier);
  for (const auto& [split, set] : sets) {
    const auto found = earlier_sets.find(split);
    if (found == earlier_sets.end() || found->second->order() == set->order()) continue;
    const bool train = split == Split::kTrain;
    sentences.push_back(
        fmt::format("the {} rows now come in Megatron's order for {} steps ({}), not in that for {} steps ({}): {}",
                    train                    ? "training"
                    : split == Split::kValid ? "validation"
                                             : "test",
                    now.train.max_steps, set->order(), earlier.train.max_steps, found->second->order(),
                    train ? "as in Megatron, rows that were trained can come again before others come for the first "
                            "time; a new run of all steps has each once an epoch"
                          : "evaluations can read other rows than before, and their losses do not compare"));
  }
  return sentences;
}

std::vector<std::string> megatron_files(const std::string& entry) {
  const std::filesystem::path index = megatron_index_path(entry).value();
  return {index.string(), std::filesystem::path(index).replace_extension(".bin").string()};
}

}  // namespace

extern const RowFormat kMegatronRows;
const RowFormat kMegatronRows = {
    .what = "Megatron's indexed files (PREFIX.idx)",
    .keys = kMegatronData,
    .labels = true,
    .without_target = "every token is data.eos_token, whose targets count nowhere with data.eod_mask_loss",
    .uncounted = "is Megatron's, which a run samples as often as it needs",
    .holds = [](const std::string& entry) { return megatron_index_path(entry).has_value(); },
    .open = open_megatron_rows,
    .contents = megatron_contents,
    .files = megatron_files,
    .fill_caches = fill_index_caches,
    .changed_order = changed_orders};

}  // namespace trireme
