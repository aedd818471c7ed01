#pragma once
// Collation of BERT rows: several rows as one run of tokens, on the host. Knows no LibTorch, no ranks.

#include "data/bert/bert_rows.h"

#include <cstdint>
#include <vector>

namespace trireme {

/// All tokens of some rows without gaps; field by field what BertBatch holds on the device. The tokens of a sequence
/// come in this order: the first one, the masked words, the others. Attention without a mask does not depend on the
/// order. In the last block it need compute only the rows that a head reads.
struct BertPack {
  std::vector<int64_t> ids, positions, types, keys;  // [T]
  std::vector<int32_t> boundaries;                   // of the sequences, padding's included
  std::vector<int64_t> sequence_keys;                // the first token's key of each
  std::vector<int32_t> needed;                       // of each: rows of its first token and its masked words
  std::vector<int64_t> masked_rows, masked_ids;      // [P]
  std::vector<float> masked_weights;                 // [P] before the division by the step's counts
  std::vector<int64_t> first_rows, next_labels;      // [M]
  std::vector<float> next_weights;                   // [M]
  /// That count; words: the sum of masked_weights.
  double words = 0, sequences = 0;
};

struct BertPackOptions {
  int64_t row_length = 512;   // tokens that a row has room for: token keys are position * row_length + offset
  int64_t multiple = 1;       // tokens are padded to a multiple of this, as a sequence that no loss reads
  bool per_sequence = false;  // masked words weigh 1 / (words of their sequence) instead of 1
};

/// `positions[i]`: place of row i in the run's order; negative: a filler, which is not counted.
BertPack make_bert_pack(const std::vector<BertRow>& rows, const std::vector<int64_t>& positions,
                        const BertPackOptions& options);

/// A row of one token, to complete a batch.
BertRow filler_bert_row();

/// A row for timing, `length` tokens long: two sequences, ids of a fixed pattern below `vocab_size`, every seventh word
/// masked.
BertRow pattern_bert_row(int64_t length, int64_t vocab_size);

}  // namespace trireme
