#include "matmul/recipe.h"

#include "trireme/base/error.h"

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

}  // namespace trireme
