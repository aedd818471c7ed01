#include "matmul/recipe.h"

#include "trireme/base/error.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace trireme {

const LinearRecipe& recipe_of(Recipe recipe) {
  switch (recipe) {
    case Recipe::kCompute: return compute_recipe();
    case Recipe::kFp8Frozen: return fp8_frozen_recipe();
#define TRIREME_CASE(Name, word) \
  case Recipe::kFp8##Name: return fp8_##word##_recipe();
      TRIREME_TRAINED_FP8_RECIPES(TRIREME_CASE)
#undef TRIREME_CASE
  }
  TRIREME_CHECK(false, "no recipe ", static_cast<int>(recipe));
  return compute_recipe();
}

const RecipeTraits& traits_of(Recipe recipe) { return recipe_of(recipe).traits(); }

const std::vector<Recipe>& trained_fp8_recipes() {
#define TRIREME_VALUE(Name, word) Recipe::kFp8##Name,
  static const std::vector<Recipe> all = {TRIREME_TRAINED_FP8_RECIPES(TRIREME_VALUE)};
#undef TRIREME_VALUE
  return all;
}

Fp8Matrix stored_weight(const Weight& weight) {
  const at::Tensor& inverse = weight.state.inverse_scale;
  TRIREME_CHECK(inverse.defined() && inverse.numel() == 1, "an FP8 weight ", weight.matrix.sizes(), " has ",
                inverse.defined() ? inverse.numel() : 0, " inverse scales, not one");
  return {weight.matrix, inverse.view(at::IntArrayRef{})};
}

Fp8Matrix current_weight(const Weight& weight, LinearRecipe::Kept& kept) {
  if (weight.quantized()) return stored_weight(weight);
  const Fp8Codes codes = make_current_codes(weight.matrix, CurrentCodes::kE4m3, false).codes;
  kept.weight_transposed = {codes.transposed, codes.inverse};
  return {codes.data, codes.inverse};
}

Fp8Matrix transposed_weight(const Weight& weight, const LinearRecipe::Kept& kept) {
  if (kept.weight_transposed.codes.defined()) return kept.weight_transposed;
  const Fp8Matrix stored = stored_weight(weight);
  return {transpose_codes(stored.codes), stored.inverse};
}

}  // namespace trireme
