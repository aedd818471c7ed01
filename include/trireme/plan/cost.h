#pragma once
// The time of a model's parts, summed over the table of its blocks: products at the rate of their recipe, attention,
// and the bytes that norms, activation, adapters and quantisation read and write.

#include "trireme/nn/model_shape.h"
#include "trireme/ops/matmul/recipe.h"
#include "trireme/plan/rates.h"

#include <cstdint>
#include <vector>

namespace trireme {

/// Seconds. Only ratios matter for the choice of a plan; with the rates of the machine the sum predicts the step.
struct RowTimes {
  // For one row of a micro-batch: a block's forward and backward, the recomputation of each Recompute, the head with
  // its loss, forward and backward.
  double forward = 1, backward = 2, norms = 0.05, mlp = 0.5, attention = 0.6, full = 1, head = 0;
  double exchange = 0;   // of the ranks that share the row, in a block's forward; the same in its backward
  double pass = 0;       // of a forward and backward, independent of the rows
  double reference = 0;  // a row's forward of a reference, through all blocks and the head
  // Of a block in tiles: rows that are copied to their place, for one row; sums of weight gradients that each tile
  // after the first reads.
  double tile_row = 0, tile_sums = 0;
};
/// Seconds in which the frozen matrices are expanded from NF4 in one pass, for forward and for backward.
double nf4_time(const ModelShape& shape, const MachineRates& rates, int64_t element_size);
/// `recipe` multiplies the blocks' matrices; an element of the compute dtype has `element_size` bytes.
RowTimes row_times(const ModelShape& shape, const RecipeTraits& recipe, const MachineRates& rates,
                   int64_t element_size);

/// FLOPs of forward and backward of one row; a multiply-add is 2. Products: 2 for each element of a matrix and token in
/// forward, the same for the input's gradient and for a trained matrix's gradient; adapters count in full. Attention: 4
/// S^2 N H a layer in forward for sequences of S tokens (both products; half of it under a causal mask), and 2.5 times
/// as many in backward, which has five products and keeps no S x S matrix; the forward of a reference counts too. The
/// published figures of Llama2-70B LoRA count in the same way (284 GFLOP a token at 2,048 tokens, 313 at 8,192).
/// Recomputed blocks, embeddings, norms, activations and softmax do not count. The last block counts all tokens, also
/// where its layers behind attention run for tokens with a loss only.
double model_flops(const ModelShape& shape);

/// The same of rows whose sequences have these lengths, where `shape` is a whole row.
class RowFlops {
 public:
  RowFlops() = default;
  explicit RowFlops(const ModelShape& shape);
  double whole_row() const { return whole_row_; }
  /// Mean over `rows` rows, which divide into sequences at `boundaries`: 0 … tokens of all rows.
  double mean(int64_t rows, const std::vector<int32_t>& boundaries) const;

 private:
  double attention(int64_t tokens) const;  // of a sequence
  ModelShape shape_;
  double whole_row_ = 0;
};

}  // namespace trireme
