// FP8 products of trained weights with one scale per tensor, from the amax of the previous step. x and W are E4M3, dy
// is E5M2; results are in the compute dtype. All products accumulate fast, as in the MLPerf submissions.
#include "matmul/recipe.h"

namespace trireme {

namespace {

class Fp8DelayedRecipe final : public Fp8Recipe {
 public:
  Fp8DelayedRecipe() : Fp8Recipe(own_traits(), Accumulate::kFast) {}
  OperandForms input_forms(const Weight& weight, bool) const override {
    return {.codes = &weight.state.scales.x, .codes_known = *weight.state.scales.known};
  }
  OperandForms gradient_forms(const Weight& weight) const override {
    return {.codes = &weight.state.scales.dy, .codes_known = *weight.state.scales.known};
  }

 private:
  /// Reads a matrix of 2 bytes an element once and writes its codes in two layouts, weights too.
  static RecipeTraits own_traits() {
    RecipeTraits traits = trained_traits("delayed", Accumulate::kFast);
    traits.delayed_scales = true;
    traits.rows_apart = false;
    traits.operand_traffic = 4;
    traits.weight_traffic = 4;
    return traits;
  }

  Fp8Codes make_weight_codes(const Weight& weight) const override {
    const Fp8LinearScales& scales = weight.state.scales;
    return make_codes({weight.matrix, {}, {}}, scales.weight, *scales.known, false).codes;
  }
};

}  // namespace

const LinearRecipe& fp8_delayed_recipe() {
  static const Fp8DelayedRecipe recipe;
  return recipe;
}

}  // namespace trireme
