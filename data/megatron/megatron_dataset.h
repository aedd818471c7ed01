#pragma once
// Rows of Megatron's indexed files: a split of one file, or a blend of several by weight.

#include "data/dataset.h"
#include "data/megatron/index_maps.h"
#include "trireme/formats/megatron/indexed_file.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

enum class MegatronSplit { kTrain, kValid, kTest };
const char* megatron_split_name(MegatronSplit split);  // "train", "valid", "test", as in the names of Megatron's caches

struct MegatronOptions {
  int64_t seq_length = 0, vocab_size = 0;
  uint32_t seed = 0;
  bool shuffle = true;
  IndexRules rules = IndexRules::kNemo;
  std::optional<std::string> splits = {};  // shares of train, valid and test; none: all documents
  std::filesystem::path index_cache = {};  // directory of the index maps; empty: that of each file
  std::optional<int64_t> eod = {};         // id that ends a document
  bool reset_position_ids = false;         // positions count from 0 again after each eod
  bool reset_attention_mask = false;       // attention does not cross an eod
  bool eod_mask_loss = false;              // no loss on what follows an eod
};

struct MegatronInput {
  std::vector<std::filesystem::path> paths;  // as megatron_index_path() takes them
  std::vector<double> weights;               // of the paths; one path may have none, and is no blend then
};

/// Row p is sample p of Megatron's run: p is the number of samples before it, over all epochs. Its labels are the S
/// tokens after the first of the S + 1 read.
class MegatronDataset : public TokenDataset {
 public:
  /// Rows that one epoch of all documents of the split gives.
  virtual int64_t rows_per_epoch() const = 0;
  /// What of the order of the rows depends on the number of samples asked for: equal for equal orders. Text for people.
  virtual std::string order() const = 0;
  /// Builds the index maps that are not in the cache, or of other documents there, and writes them. One process of a
  /// run calls it before the others read; without it every process builds its own in memory. Where the directory
  /// cannot be written, a sentence says so, and nothing is built.
  virtual void fill_cache() const = 0;
  /// The documents of the split, as sets to check before training: ids inside the vocabulary.
  virtual int64_t documents() const = 0;
  virtual void check_document(int64_t index) const = 0;
};

/// Reads a document (a sequence of the file) whole. DataError for an id outside [0, vocab_size), with file, byte and
/// value.
void check_megatron_document(const MegatronFile& file, int64_t document, int64_t vocab_size);

/// `samples`: rows that a run reads; 0: one epoch of a single path. DataError, ConfigError.
std::shared_ptr<const MegatronDataset> open_megatron_dataset(const MegatronInput& input, MegatronSplit split,
                                                             int64_t samples, const MegatronOptions& options);

}  // namespace trireme
