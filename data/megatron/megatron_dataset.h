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

struct MegatronOptions {
  int64_t seq_length = 0, vocab_size = 0;
  uint32_t seed = 0;
  bool shuffle = true;
  IndexRules rules = IndexRules::kNemo;
  std::optional<std::string> splits = {};  // shares of train, valid and test; none: all documents
  std::filesystem::path index_cache = {};  // directory of the index maps; empty: the directory of each file
  std::optional<int64_t> eod = {};         // id that ends a document
  bool reset_position_ids = false;         // positions count from 0 again after each eod
  bool reset_attention_mask = false;       // attention does not cross an eod
  bool eod_mask_loss = false;              // no loss on the token after an eod
};

struct MegatronInput {
  std::vector<std::filesystem::path> paths;  // as megatron_index_path() takes them
  std::vector<double> weights;               // of the paths; empty for one path that is no blend
};

/// Row p is sample p of Megatron's run: p is the number of samples before it, over all epochs. Its labels are the S
/// tokens after the first of the S + 1 read.
class MegatronDataset : public TokenDataset {
 public:
  /// Rows that one epoch of all documents of the split gives.
  virtual int64_t rows_per_epoch() const = 0;
  /// The part of the rows' order that depends on the number of requested samples: equal for equal orders. Text for
  /// people.
  virtual std::string order() const = 0;
  /// Builds index maps that are absent from the cache or belong to other documents, and writes them. One process of a
  /// run calls it before the others read; without it every process builds its own in memory. If the directory cannot be
  /// written, returns a sentence and builds nothing.
  virtual void fill_cache() const = 0;
  /// The documents of the split, as sets to check before training: ids inside the vocabulary.
  virtual int64_t documents() const = 0;
  virtual void check_document(int64_t index) const = 0;
};

/// Reads a document (a sequence of the file) whole. DataError for an id outside [0, vocab_size), with file, byte and
/// value.
void check_megatron_document(const MegatronFile& file, int64_t document, int64_t vocab_size);

/// `samples`: rows that a run reads; 0: one epoch of a single path. DataError, ConfigError.
std::shared_ptr<const MegatronDataset> open_megatron_dataset(const MegatronInput& input, Split split, int64_t samples,
                                                             const MegatronOptions& options);

/// NeMo's mock set. Row i has `seq_length` inputs and as many labels, drawn one after the other from
/// default_rng(seed + i), uniform in [0, vocab_size): no input says anything about a label, and the loss stays near
/// ln(vocab_size). The rows of train and valid are the same.
std::unique_ptr<TokenDataset> open_mock_dataset(int64_t rows, int64_t seq_length, int64_t vocab_size, uint64_t seed);

}  // namespace trireme
