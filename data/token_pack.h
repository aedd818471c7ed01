#pragma once
// Collation of token rows: several rows of equal length as one batch, on the host. Knows no LibTorch, no ranks.

#include "data/dataset.h"

#include <cstdint>
#include <vector>

namespace trireme {

/// B rows of S tokens; field by field what TokenBatch holds on the device.
struct TokenPack {
  int64_t rows = 0, length = 0;           // B, S
  std::vector<int64_t> tokens;            // [B * S]
  std::vector<int64_t> positions;         // [B * S] in the token's sequence
  std::vector<int64_t> labels;            // [B * S] what position t predicts; empty: token t + 1 of its row
  std::vector<float> loss_weights;        // [B * S] at t: weight of the prediction that t makes
  std::vector<int64_t> sample_ids;        // [B] places of the rows in the run's order
  std::vector<int32_t> boundaries = {0};  // cumulative lengths of all sequences of all rows
  std::vector<int64_t> sequence_keys;     // [sequences] place of the sequence's row * S + position of its first token
  double denominator = 0;                 // divisor of the loss sum: number of targets, or of rows with a target

  /// Rows of pairs: for each pair the sequences of its answers, and their targets. Of judged answers: the answer is
  /// `chosen`, the answer to another prompt `rejected`.
  std::vector<int64_t> chosen, rejected;
  std::vector<double> chosen_targets, rejected_targets;
  std::vector<double> desirable;   // of judged answers: 1 or 0
  std::vector<uint64_t> row_keys;  // of rows with pairs: hashes of their tokens, sequences and masks
  std::vector<int64_t> row_pairs;  // of the same rows: how many they have
};

/// `positions[i]`: place of row i in the run's order. `per_token`: every target weighs 1, and the denominator counts
/// targets; otherwise the targets of a row weigh 1 together, and the denominator counts rows with a target.
TokenPack make_token_pack(const std::vector<Sample>& rows, const std::vector<int64_t>& positions, bool per_token);

/// Slice `index` of the tokens of `pack`, which divide into `count` slices, as one row: tokens, positions, weights, and
/// labels, which it always has. The sequences stay those of the whole pack, and so do the rows' places and the
/// denominator.
TokenPack token_slice(TokenPack pack, int64_t index, int64_t count);

/// A row of `length` tokens without a target, to complete a batch.
Sample filler_sample(int64_t length);

/// `sample` with explicit labels: the next token; the label of the last position has weight 0.
Sample with_labels(Sample sample);

/// A row for timing: ids of a fixed pattern below `vocab_size`, one sequence, a loss on every position.
Sample pattern_sample(int64_t length, int64_t vocab_size);

}  // namespace trireme
