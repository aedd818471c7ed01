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
  std::vector<int32_t> segment_ids;           // [T] 0 up to and including the first SEP of a sequence, then 1
  std::vector<int32_t> masked_positions;      // [M] positions in the row, ascending
  std::vector<int32_t> masked_ids;            // [M] the true tokens there
  std::vector<int32_t> sequence_lengths;      // [n], n = 1..3
  std::vector<int32_t> next_sentence_labels;  // [n] 1 = sentence B is random, 0 = it follows A
};

/// Rows of packed shards, or of variable-length files (one sequence a row); the datasets in the files decide which.
/// Thread-safe. Shards are read whole; a few of them stay in memory, and a background thread reads the next one.
class BertDataset {
 public:
  virtual ~BertDataset() = default;
  virtual int64_t size() const = 0;       // rows
  virtual int64_t sequences() const = 0;  // in all rows
  /// Row `index`, checked: DataError (exit 3) with file, dataset, row and value.
  virtual BertRow read(int64_t index) const = 0;
  virtual std::string description() const = 0;
  /// Numbers of rows of the shards in the order of their names. Row indices run through the shards in this order.
  virtual const std::vector<int64_t>& shard_rows() const = 0;
  /// Announces the next shard, so that it is read in the background. Only a hint.
  virtual void will_need(int64_t shard) const = 0;
};

/// Shards, and those of directories (part_*), sorted by name. DataError without any, and where one is given twice.
std::vector<std::filesystem::path> bert_shards(const std::vector<std::filesystem::path>& files);
/// `files`: as of bert_shards(). `max_length`: longest row in tokens (512).
/// `vocab_size`: ids are in [0, vocab_size). `segments`: of the model, at least 1. DataError for missing datasets,
/// wrong types, unequal lengths, links to other files, and packed mixed with variable-length files.
std::unique_ptr<BertDataset> open_bert_dataset(const std::vector<std::filesystem::path>& files, int64_t max_length,
                                               int64_t vocab_size, int64_t segments = 2);

/// The order of rows in a run. Each epoch shuffles the shards, and the rows within each shard, so that a run reads one
/// shard after the other. The order is a pure function of (shard sizes, seed, position): it allows random access, does
/// not depend on the world size, and a resumed run needs only the position. Not thread-safe. `dataset` must outlive the
/// sampler.
class BertSampler {
 public:
  BertSampler(const BertDataset& dataset, uint64_t seed, bool shuffle);
  /// The row index at position 0, 1, … of the run; after the last row the next epoch begins. Also announces the next
  /// shard to the dataset.
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
