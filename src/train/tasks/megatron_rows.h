#pragma once
// Private to train/: the rows of Megatron's indexed files and of the mock set, as a configuration asks for them.

#include "data/megatron/megatron_dataset.h"
#include "data/row_scan.h"
#include "trireme/config/config.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

inline constexpr const char* kMockData = "mock";

/// True where all of data.train is Megatron's (indexed files, or the word mock), false where none of it is.
/// ConfigError for some of each.
bool are_megatron_rows(const std::vector<std::string>& paths);

/// ConfigError where a key for Megatron's rows is set, but data.train has others.
void refuse_megatron_keys(const Config& config);

/// The files of data.train that a run's fingerprint is made of: both of each prefix; of the mock set none.
std::vector<std::string> train_files(const Config& config);

/// Rows of one split.
struct MegatronRows {
  std::shared_ptr<const TokenDataset> data;
  int64_t rows = 0;       // that the run reads: all positions of training, or the rows of an evaluation
  int64_t per_epoch = 0;  // rows of all documents
  std::vector<RowSet> sets;
};

/// data.train, or its part for training where data.splits divides it. `stored_vocab`: ids of the model before its
/// vocabulary is padded, which the mock set draws from. DataError, ConfigError.
MegatronRows open_megatron_train(const Config& config, int64_t vocab_size, int64_t stored_vocab);
/// data.valid (kValid) or data.test (kTest), or the part of data.train that data.splits gives them. Call it where one
/// of them is set.
MegatronRows open_megatron_evaluation(const Config& config, MegatronSplit split, int64_t vocab_size,
                                      int64_t stored_vocab);

/// Writes the index maps that the run reads and that are not in their cache. One rank calls it while the others wait.
void fill_index_caches(const Config& config);

/// Sentences about the sets whose rows come in another order than in a run of `before`: Megatron's order depends on the
/// number of steps and of evaluated rows.
std::vector<std::string> changed_megatron_orders(const Config& before, const Config& now);

/// The sets of documents to check, for messages named `name`.
RowSet megatron_documents(const std::string& name, const std::shared_ptr<const MegatronDataset>& data);

}  // namespace trireme
