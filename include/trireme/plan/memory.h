#pragma once
// The activations of a model, summed over the table of its blocks.

#include "trireme/nn/model_shape.h"
#include "trireme/ops/matmul/recipe.h"

#include <cstdint>

namespace trireme {

/// Bytes for one row of a micro-batch, unless their comment says otherwise.
struct RowMemory {
  /// What a block keeps for backward with Recompute::kNone, kNorms, kMlp (0: not supported by the model) and kFull.
  int64_t saved = 0, saved_norms = 0, saved_mlp = 0, saved_input = 0;
  /// What a block's backward needs in addition at its peak, and the part of this that does not grow with the rows.
  int64_t working = 0, working_fixed = 0;
  HeadMemory head;
};
/// Heads of q, k and v that the ranks of a context exchange for each token, which repeats key heads where there are
/// fewer than ranks. Without a context those of the block.
int64_t exchanged_heads(const ModelShape& shape);

/// `recipe` multiplies the blocks' matrices; an element of the compute dtype has `element_size` bytes.
RowMemory row_memory(const ModelShape& shape, const RecipeTraits& recipe, int64_t element_size);

}  // namespace trireme
