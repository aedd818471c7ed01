#pragma once
// The traits of the recipes of linear layers (base/recipe.h): what a recipe stores, reads and costs. The store of the
// weights, the plan and the configuration's checks read them.

#include "trireme/base/recipe.h"

#include <cstdint>
#include <vector>

namespace trireme {

/// One of the three products of a linear layer.
struct ProductTraits {
  bool fp8 = false;     // operands are FP8 codes: the rate is that of FP8 products
  double slowdown = 1;  // its time relative to the fastest product of its operands' format
};

struct RecipeTraits {
  const char* name;  // an FP8 recipe of trained matrices: its word in precision.fp8_recipe
  bool trains;       // has weight gradients
  ProductTraits forward{}, dgrad{}, wgrad{};

  /// The store keeps the matrices as E4M3 codes with one scale each. Codes of frozen matrices are made when the weights
  /// are loaded, codes of trained matrices from the master weights after each optimizer step. Otherwise the store
  /// has a copy in the compute dtype.
  bool stores_codes = false;
  /// The scales come from the step before: they are part of the run's state (Fp8Scales) and are not used in an
  /// evaluation.
  bool delayed_scales = false;

  /// A row of x or dy is converted by itself, so that forward and dgrad of some rows are those of all rows. Tiles are
  /// possible with such a recipe only: one scale for all tokens would become one a tile.
  bool rows_apart = true;

  /// Operands have a scale per row, which cuBLASLt multiplies on compute capability 9.0 only; others from 8.9 on. A CPU
  /// emulates every recipe.
  bool scales_rows = false;
  /// On a GPU: a compute dtype of 16 bits.
  bool needs_16_bit = false;
  /// On a GPU: both sizes of a matrix are multiples of size_multiple, the tokens of a micro-batch of token_multiple.
  int64_t size_multiple = 1, token_multiple = 1;

  /// wgrad reads the layer's input in the compute dtype, so the input is kept or recomputed.
  bool wgrad_reads_plain_input = false;
  /// Bytes an element of the input's codes that forward keeps for wgrad, and of the codes of the output's gradient in
  /// backward.
  int64_t kept_input_bytes = 0, gradient_bytes = 0;
  /// The gate and up projections' output is kept for backward in FP8 rows.
  bool keeps_activations_in_fp8 = false;

  /// Bytes an element that conversions to operands read and write in each forward and backward, beyond the traffic of
  /// their producers: of inputs and output gradients; of weights.
  double operand_traffic = 0, weight_traffic = 0;

  bool fp8() const { return forward.fp8 || dgrad.fp8 || wgrad.fp8; }
};

const RecipeTraits& traits_of(Recipe recipe);

/// The FP8 recipes of trained matrices, in the order in which hints propose them.
const std::vector<Recipe>& trained_fp8_recipes();

}  // namespace trireme
