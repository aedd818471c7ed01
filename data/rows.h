#pragma once
// The rows of data.train, data.valid and data.test, whatever files they come from: open_rows() and the registry of
// formats behind it (docs/design/rows.md). Knows the configuration; independent of LibTorch.

#include "data/dataset.h"
#include "data/row_scan.h"
#include "data/stream/stream_loader.h"
#include "trireme/config/config.h"
#include "trireme/config/keys.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// The rows of a split, opened. Row: Sample, or BertRow.
template <class Row>
struct SplitRows {
  /// Training: the row at place `index` (from 0) of the run's order; called by one thread at a time, for the rows of a
  /// step in ascending order. Evaluations: row `index`; thread-safe. Empty: the run has no such split.
  std::function<Row(int64_t index)> read = {};
  int64_t rows = 0;     // training: of one pass over the data, an estimate for documents; else those that are evaluated
  int64_t samples = 0;  // in these rows
  int64_t there = 0;    // all rows of the files; 0: another number of them may be other ones
  /// Row `number` of the files, from 0 to `there`; thread-safe. Empty: rows are packed from documents.
  std::function<Row(int64_t number)> of_files = {};
  /// What read() takes from where rows are packed from documents, whose places do not follow from the index; else null.
  std::shared_ptr<StreamLoader> stream = {};
  std::vector<RowSet> sets = {};  // to check before training
  std::string description = {};   // "train.npy (npy <i4, 3,901 rows)"
};

/// Who reads rows.
struct RowReader {
  int64_t vocab_size = 0;         // ids that rows may have: without those of padding
  int64_t stored_vocab_size = 0;  // of model.path
  int rank = 0, readers = 1;      // of those that share the rows of a step
};

/// What `entries` of data.train or data.valid hold, whatever a run makes of it.
struct RowContents {
  std::vector<RowSet> sets;        // all of it, to check
  std::vector<std::string> texts;  // what it is, for people
};
struct ContentsRequest {
  std::string name;  // for messages: "data.train"
  std::vector<std::string> entries;
  int64_t seq_length = 0, vocab_size = 0;
  std::filesystem::path tokenizer;  // of texts: a model directory or a tokenizer file
  std::string column;               // of texts and ids; empty: the format's choice
};

/// A kind of data that data.train may hold. Each is written down in one file; row_formats() lists them.
struct RowFormat {
  const char* what;                         // for messages: "documents"
  DataKinds keys;                           // the keys of the section data that have a meaning for it
  bool labels = false;                      // its rows say what each position predicts
  bool pairs = false;                       // its rows may be pairs of answers
  const char* without_target;               // why a row may have no target
  const char* uncounted = "";               // why its rows do not say how long train.epochs is; "": they do
  bool (*holds)(const std::string& entry);  // whether this entry of data.train is of the format
  /// DataError, ConfigError.
  SplitRows<Sample> (*open)(const Config& config, Split split, const RowReader& reader);
  RowContents (*contents)(const ContentsRequest& request);
  /// The files of an entry, of which a run's fingerprint is made.
  std::vector<std::string> (*files)(const std::string& entry) = [](const std::string& entry) {
    return std::vector<std::string>{entry};
  };
  /// Whether the run makes tokens of data.train's texts as it reads them.
  bool (*tokenises)(const Config& config) = [](const Config&) { return false; };
  /// Writes what all ranks read and no file has yet. One rank calls it while the others wait.
  void (*fill_caches)(const Config& config) = [](const Config&) {};
  /// Sentences about the splits whose rows come in another order than in a run of `before`, which `now` resumes.
  std::vector<std::string> (*changed_order)(const Config& before, const Config& now) =
      [](const Config&, const Config&) { return std::vector<std::string>(); };
};

/// The first that holds an entry is its format; the last one holds any.
const std::vector<const RowFormat*>& row_formats();
const RowFormat& row_format(const std::string& entry);
/// The one format of the entries of `key` ("data.train"). ConfigError where they have several, DataError where some are
/// not there.
const RowFormat& row_format(const std::string& key, const std::vector<std::string>& entries);

/// Opens a split as its format does; `train`: the format of data.train. Without rows where the run has no such split.
/// ConfigError where the split is of several formats, where a key is set that has no meaning for the format of
/// data.train, and where one of data.train and the split has labels. DataError for files of conversations, with the
/// command that makes rows of them.
SplitRows<Sample> open_rows(const Config& config, Split split, const RowFormat& train, const RowReader& reader);

/// fill_caches(), files() and changed_order() of what data.train, or these entries of a split, hold.
void fill_row_caches(const Config& config);
std::vector<std::string> row_files(const std::vector<std::string>& entries);
/// The files of the tokenizer that makes tokens of data.train as the run reads it; none: it holds tokens.
std::vector<std::filesystem::path> row_tokenizer(const Config& config);
std::vector<std::string> changed_row_order(const Config& before, const Config& now);

// For formats.

/// What a configuration says of a split.
struct SplitKeys {
  const char* key;          // of its files: "data.valid", or with data.splits "the validation part of data.train"
  const char* samples_key;  // of its number of rows: "eval.samples"
  const std::vector<std::string>& files;  // with data.splits those of data.train; empty: the run has no such split
  std::optional<int64_t> samples;
};
SplitKeys split_keys(const Config& config, Split split);

/// How many of the `there` rows of an evaluated split are evaluated: as many as the configuration says, or all.
/// ConfigError where it is more than there are.
int64_t rows_to_evaluate(const Config& config, Split split, int64_t there);

std::vector<std::filesystem::path> to_paths(const std::vector<std::string>& names);

}  // namespace trireme
