#include "megatron_rows.h"

#include "data/megatron/mock_dataset.h"
#include "task_base.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/config/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

namespace trireme {

namespace {

bool is_mock(const std::vector<std::string>& entries) {
  return std::find(entries.begin(), entries.end(), kMockData) != entries.end();
}

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

/// What a configuration says of an evaluated split.
struct Evaluated {
  const char* key;          // of its files
  const char* samples_key;  // of its rows
  const std::vector<std::string>& files;
  std::optional<int64_t> samples;
};
Evaluated evaluated(const Config& config, MegatronSplit split) {
  if (split == MegatronSplit::kTest)
    return {"data.test", "eval.test_samples", config.data.test, config.eval.test_samples};
  return {"data.valid", "eval.samples", config.data.valid, config.eval.samples};
}

/// Rows that Megatron builds the maps of an evaluated split for: those of all evaluations, although each reads the
/// first ones; a test is evaluated once. 0: all documents once, which is enough where nothing is shuffled.
int64_t evaluated_samples(const Config& config, MegatronSplit split) {
  const Evaluated what = evaluated(config, split);
  if (!what.samples || !config.eval.shuffle) return 0;
  const int64_t batch = config.batch.global_batch_size;
  int64_t evaluations = 1;
  if (split == MegatronSplit::kValid && config.eval.every_samples)
    evaluations += config.train.max_steps / ((*config.eval.every_samples + batch - 1) / batch);
  int64_t samples = 0;
  if (__builtin_mul_overflow(evaluations, *what.samples, &samples))
    throw ConfigError(fmt::format("{} evaluations of {} {} are more than a run can count", evaluations,
                                  what.samples_key, *what.samples));
  return samples;
}

std::shared_ptr<const MegatronDataset> open_train_files(const Config& config, int64_t vocab_size) {
  const DataSection& data = config.data;
  if (data.train.size() > 1 && data.weights.empty())
    throw ConfigError("data.train lists several of Megatron's files: give each a weight, as {path: …, weight: 0.3}");
  return open_megatron_dataset({paths(data.train), data.weights}, MegatronSplit::kTrain, train_samples(config),
                               megatron_options(config, vocab_size));
}

std::shared_ptr<const MegatronDataset> open_evaluated_files(const Config& config, MegatronSplit split,
                                                            int64_t vocab_size) {
  const DataSection& data = config.data;
  const Evaluated what = evaluated(config, split);
  const bool divided = data.splits.has_value();
  const auto& files = divided ? data.train : what.files;
  if (!divided && files.size() > 1)
    throw ConfigError(
        fmt::format("{} lists several of Megatron's files: name one, or divide data.train with data.splits", what.key));
  const int64_t samples = evaluated_samples(config, split);
  if (files.size() > 1 && samples == 0)
    throw ConfigError(
        fmt::format("data.splits of a blend needs {}, the rows of an evaluation, and eval.shuffle", what.samples_key));
  MegatronOptions options = megatron_options(config, vocab_size);
  options.shuffle = options.shuffle && config.eval.shuffle;
  return open_megatron_dataset({paths(files), divided ? data.weights : std::vector<double>()}, split, samples, options);
}

/// ConfigError where a key for documents of text is set.
void refuse_stream_keys(const Config& config) {
  if (const std::string keys = keys_without_meaning(config, kMegatronData); !keys.empty())
    throw ConfigError(
        fmt::format("{}: for documents that are packed while the run reads them, but {} holds rows by "
                    "Megatron's rules: leave it out",
                    keys, config.data.train.front()));
}

MegatronRows mock_rows(const Config& config, int64_t rows, int64_t vocab) {
  MegatronRows mock;
  mock.data = open_mock_dataset(rows, config.data.seq_length, vocab, static_cast<uint64_t>(config.train.seed));
  mock.rows = mock.per_epoch = rows;
  return mock;
}

}  // namespace

bool are_megatron_rows(const std::vector<std::string>& entries) {
  const auto is_megatron = [](const std::string& entry) {
    return entry == kMockData || megatron_index_path(entry).has_value();
  };
  const auto count = static_cast<size_t>(std::count_if(entries.begin(), entries.end(), is_megatron));
  if (count == 0) return false;
  if (count < entries.size())
    throw ConfigError(fmt::format(
        "{} is one of Megatron's indexed files (PREFIX.idx) and {} is not: a set of rows is made of one kind",
        *std::find_if(entries.begin(), entries.end(), is_megatron),
        *std::find_if_not(entries.begin(), entries.end(), is_megatron)));
  if (is_mock(entries) && entries.size() > 1)
    throw ConfigError("mock stands for random ids, which are not mixed with files: give it alone, or leave it out");
  return true;
}

void refuse_megatron_keys(const Config& config) {
  const std::string keys = keys_without_meaning(config, kRowData | kDocumentData), first = config.data.train.front();
  if (keys.empty()) return;
  std::error_code error;
  if (!std::filesystem::exists(first, error))
    throw DataError(fmt::format("{0}: neither it nor {0}.idx is there", first));
  throw ConfigError(fmt::format(
      "{0}: for Megatron's indexed files, but {1} is none (there is no {1}.idx): leave it out", keys, first));
}

std::vector<std::string> train_files(const Config& config) {
  std::vector<std::string> files;
  for (const std::string& entry : config.data.train) {
    if (entry == kMockData) continue;
    if (const auto index = megatron_index_path(entry)) {
      files.push_back(index->string());
      files.push_back(std::filesystem::path(*index).replace_extension(".bin").string());
    } else {
      files.push_back(entry);
    }
  }
  return files;
}

RowSet megatron_documents(const std::string& name, const std::shared_ptr<const MegatronDataset>& data) {
  return {name, data->documents(), {}, [data](int64_t document) { data->check_document(document); }, "documents"};
}

MegatronRows open_megatron_train(const Config& config, int64_t vocab_size, int64_t stored_vocab) {
  refuse_stream_keys(config);
  if (is_mock(config.data.train)) return mock_rows(config, train_samples(config), stored_vocab);
  const auto files = open_train_files(config, vocab_size);
  return {files, train_samples(config), files->rows_per_epoch(), {megatron_documents("data.train", files)}};
}

MegatronRows open_megatron_evaluation(const Config& config, MegatronSplit split, int64_t vocab_size,
                                      int64_t stored_vocab) {
  const Evaluated what = evaluated(config, split);
  const std::string key = config.data.splits ? "data.train" : what.key;
  if (is_mock(config.data.splits ? config.data.train : what.files)) {
    if (!what.samples)
      throw ConfigError(fmt::format("{} is mock: {} says how many rows an evaluation has", key, what.samples_key));
    return mock_rows(config, *what.samples, stored_vocab);
  }
  const auto files = open_evaluated_files(config, split, vocab_size);
  MegatronRows rows{files, what.samples.value_or(files->size()), files->rows_per_epoch(), {}};
  const std::string part =
      split == MegatronSplit::kTest ? "the test part of data.train" : "the validation part of data.train";
  rows.sets.push_back(megatron_documents(config.data.splits ? part : key, files));
  return rows;
}

namespace {

/// The sets that a run reads through index maps.
std::map<MegatronSplit, std::shared_ptr<const MegatronDataset>> indexed_sets(const Config& config) {
  std::map<MegatronSplit, std::shared_ptr<const MegatronDataset>> sets;
  if (!are_megatron_rows(config.data.train) || is_mock(config.data.train)) return sets;
  constexpr int64_t kAnyId = std::numeric_limits<int64_t>::max();  // no row is read
  sets[MegatronSplit::kTrain] = open_train_files(config, kAnyId);
  for (const MegatronSplit split : {MegatronSplit::kValid, MegatronSplit::kTest}) {
    const Evaluated what = evaluated(config, split);
    const bool part = config.data.splits && (split == MegatronSplit::kValid || what.samples);
    if (part || (!what.files.empty() && are_megatron_rows(what.files) && !is_mock(what.files)))
      sets[split] = open_evaluated_files(config, split, kAnyId);
  }
  return sets;
}

}  // namespace

void fill_index_caches(const Config& config) {
  for (const auto& [split, set] : indexed_sets(config)) set->fill_cache();
}

std::vector<std::string> changed_megatron_orders(const Config& before, const Config& now) {
  Config earlier = now;  // whose paths are those of this start
  earlier.train.max_steps = before.train.max_steps;
  earlier.eval = before.eval;
  if (earlier == now) return {};
  std::vector<std::string> sentences;
  const auto sets = indexed_sets(now), earlier_sets = indexed_sets(earlier);
  for (const auto& [split, set] : sets) {
    const auto found = earlier_sets.find(split);
    if (found == earlier_sets.end() || found->second->order() == set->order()) continue;
    const bool train = split == MegatronSplit::kTrain;
    sentences.push_back(
        fmt::format("the {} rows now come in Megatron's order for {} steps ({}), not in that for {} steps ({}): {}",
                    train                            ? "training"
                    : split == MegatronSplit::kValid ? "validation"
                                                     : "test",
                    now.train.max_steps, set->order(), earlier.train.max_steps, found->second->order(),
                    train ? "as in Megatron, rows that were trained can come again before others come for the first "
                            "time; a new run of "
                            "all steps has each once an epoch"
                          : "evaluations can read other rows than before, and their losses do not compare"));
  }
  return sentences;
}

}  // namespace trireme
