// Frozen weights in E4M3 with one scale each; inputs and output gradients are quantized with one scale per row. All in
// E4M3: a scale per row makes the range of E5M2 unnecessary, and E4M3 has one more bit of mantissa.
#include "matmul/recipe.h"

namespace trireme {

namespace {

class Fp8FrozenRecipe final : public Fp8Recipe {
 public:
  /// The norm and the activation before a product write codes, one byte, instead of the plain form.
  Fp8FrozenRecipe()
      : Fp8Recipe({.name = "frozen",
                   .trains = false,
                   .forward = {.fp8 = true},
                   .dgrad = {.fp8 = true},
                   .stores_codes = true,
                   .needs_sm90 = true,
                   .size_multiple = 16,
                   .gradient_bytes = 1,
                   .keeps_activations_in_fp8 = true,
                   .operand_traffic = 1},
                  Accumulate::kFast) {}
  OperandForms input_forms(const Weight&, bool) const override { return {.rows = true}; }
  OperandForms gradient_forms(const Weight&) const override { return {.rows = true}; }
};

}  // namespace

const LinearRecipe& fp8_frozen_recipe() {
  static const Fp8FrozenRecipe recipe;
  return recipe;
}

}  // namespace trireme
