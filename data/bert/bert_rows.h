#pragma once
// Rows for BERT pre-training: packed shards and variable-length evaluation files in HDF5 (layouts of MLPerf's BERT
// benchmark), and the order in which a run reads them.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// One row: 1 to 3 sequences back to back, no padding. T = sum of sequence_lengths.
struct BertRow {
  std::vector<int32_t> input_ids;             // [T]
  std::vector<int32_t> segment_ids;           // [T] 0 up to and with the first SEP of a sequence, then 1
  std::vector<int32_t> masked_positions;      // [M] positions in the row, ascending
  std::vector<int32_t> masked_ids;            // [M] the true tokens there
  std::vector<int32_t> sequence_lengths;      // [n], n = 1..3
  std::vector<int32_t> next_sentence_labels;  // [n] 1 = sentence B comes from elsewhere, 0 = it follows A
};

/// Rows of packed shards, or of variable-length files (one sequence a row); which of the two follows from the datasets
/// that the files have. Thread-safe; whole shards are read at once and a few of them kept, the one after the shard in
/// use by a thread of its own.
class BertDataset {
 public:
  virtual ~BertDataset() = default;
  virtual int64_t size() const = 0;       // rows
  virtual int64_t sequences() const = 0;  // in all rows
  /// Row `index`, checked: DataError (exit 3) with file, dataset, row and value.
  virtual BertRow read(int64_t index) const = 0;
  virtual std::string description() const = 0;
  /// Rows of each shard, in the order of their names: row indices run through them one after the other.
  virtual const std::vector<int64_t>& shard_rows() const = 0;
  /// Tells which shard will be needed after the one in use, so that it is read meanwhile. Only a hint.
  virtual void will_need(int64_t shard) const = 0;
};

/// `files`: shards, or directories of part_* shards; sorted by name. `max_length`: longest row in tokens (512).
/// `vocab_size`: ids are in [0, vocab_size). DataError for missing datasets, wrong types, unequal lengths, links that
/// leave a file, mixed kinds.
std::unique_ptr<BertDataset> open_bert_dataset(const std::vector<std::filesystem::path>& files, int64_t max_length,
                                               int64_t vocab_size);

/// The order of a run. Per epoch the shards are shuffled, and the rows within each shard: a run reads one shard after
/// the other. A pure function of (shard sizes, seed, position): random access, the same for every world size, a resumed
/// run needs the position alone. Not thread-safe. `dataset` outlives the sampler.
class BertSampler {
 public:
  BertSampler(const BertDataset& dataset, uint64_t seed, bool shuffle);
  /// Row at position 0, 1, … of the run; positions beyond the last row begin the next epoch. Also hints the dataset's
  /// next shard.
  int64_t at(int64_t position);

 private:
  void set_epoch(int64_t epoch);
  void set_slot(int64_t slot);
  const BertDataset& dataset_;
  uint64_t seed_;
  bool shuffle_;
  int64_t epoch_ = -1, slot_ = -1;
  std::vector<int64_t> first_row_;       // [shards + 1] of each shard in the dataset
  std::vector<int64_t> shards_;          // [shards] this epoch's order
  std::vector<int64_t> first_position_;  // [shards + 1] within the epoch
  std::vector<int32_t> rows_;            // this shard's order; empty when not shuffled
};

}  // namespace trireme
