#pragma once
// Private to data/bert: one shard in memory.

#include "data/bert/bert_rows.h"
#include "trireme/formats/hdf5/hdf5_rows.h"

#include <filesystem>

namespace trireme {

/// The limits that every row is checked against.
struct BertLimits {
  int64_t max_length = 512;
  int64_t vocab_size = 0;
  int64_t segments = 2;  // 1: rows of a pair of sentences do not fit the model
};

constexpr int64_t kMaxPackedSequences = 3;

class BertShard {
 public:
  /// Reads the whole file. DataError for missing datasets, wrong types, columns of unequal numbers of rows.
  BertShard(const std::filesystem::path& path, const BertLimits& limits);
  int64_t size() const { return input_ids_.size(); }
  bool packed() const { return packed_; }
  int64_t sequences() const;
  /// Row `row`, checked.
  BertRow read(int64_t row) const;

 private:
  void check_sequences(int64_t row, const BertRow& result) const;
  void check_tokens(int64_t row, const BertRow& result) const;
  void check_masks(int64_t row, const BertRow& result) const;
  [[noreturn]] void fail(const char* dataset, int64_t row, const std::string& what) const;

  std::filesystem::path path_;
  BertLimits limits_;
  bool packed_ = false;
  IntegerRows input_ids_, segment_ids_, masked_positions_, masked_ids_;
  IntegerRows lengths_, labels_;     // packed shards
  std::vector<int32_t> row_labels_;  // variable-length files: one sequence a row
};

/// The size of a shard, from its headers.
struct BertShardHeader {
  bool packed = false;
  int64_t rows = 0;
};
BertShardHeader read_bert_header(const std::filesystem::path& path);
/// Sequences of a shard without reading its tokens.
int64_t count_bert_sequences(const std::filesystem::path& path);

}  // namespace trireme
