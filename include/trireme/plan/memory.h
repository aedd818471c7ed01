#pragma once
// The activations of a model, summed over the table of its blocks.

#include "trireme/nn/model_shape.h"
#include "trireme/ops/dispatch.h"
#include "trireme/ops/matmul/recipe.h"

#include <cstdint>

namespace trireme {

/// Bytes for one row of a micro-batch, unless their comment says otherwise.
struct RowMemory {
  /// What a block keeps for backward with Recompute::kNone, kNorms, kMlp, kAttention (0: not supported by the model)
  /// and kFull.
  int64_t saved = 0, saved_norms = 0, saved_mlp = 0, saved_attention = 0, saved_input = 0;
  /// What of `saved` and `saved_norms` is the MLP's first projection, which saved_mlp does not have.
  int64_t projection = 0;
  /// What a block's backward needs in addition at its peak: where it computes the up projection's result again, and
  /// where that was kept in the compute dtype; and the part of both that does not grow with the rows.
  int64_t working = 0, working_kept = 0, working_fixed = 0;
  /// Codes of a block's matrices that forward makes and keeps for backward, which a block that is recomputed makes
  /// again; for any number of rows.
  int64_t kept_codes = 0;
  /// What backward needs in addition where a block is recomputed in tiles: for its rows, without attention's output;
  /// bytes a token of a tile (0: the recipe has no tiles); fp32 sums of weight gradients that are reduced in 16 bits,
  /// for any number of rows.
  int64_t working_whole = 0, tile_token = 0, tile_sums = 0;
  HeadMemory head;
};
/// Heads of q, k and v that the ranks of a context exchange for each token, which repeats key heads where there are
/// fewer than ranks. Without a context those of the block.
int64_t exchanged_heads(const ModelShape& shape);

/// `recipe` multiplies the blocks' matrices; an element of the compute dtype has `element_size` bytes. Blocks keep the
/// same values with all `kernels`; what differs is the working memory of attention by the library and of compositions.
RowMemory row_memory(const ModelShape& shape, const RecipeTraits& recipe, int64_t element_size,
                     KernelClass kernels = KernelClass::kHopper);

}  // namespace trireme
