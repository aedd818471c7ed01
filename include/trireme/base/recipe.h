#pragma once
// The list of recipes for the products of linear layers. ops/matmul/recipe.h has their traits.

namespace trireme {

/// The FP8 recipes of trained matrices: X(Name, word) stands for Recipe::kFp8Name, for `word` in precision.fp8_recipe
/// and for Fp8NameRecipe in src/ops/matmul/recipe.cpp.
#define TRIREME_TRAINED_FP8_RECIPES(X) \
  X(Rowwise, rowwise)                  \
  X(Tensorwise, tensorwise)            \
  X(Delayed, delayed)

/// kCompute: all three products in the compute dtype. kFp8Frozen: never trained; weight in E4M3.
#define TRIREME_VALUE(Name, word) kFp8##Name,
enum class Recipe { kCompute, kFp8Frozen, TRIREME_TRAINED_FP8_RECIPES(TRIREME_VALUE) };
#undef TRIREME_VALUE

}  // namespace trireme
