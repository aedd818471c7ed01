// FP8 products of trained weights with one scale per tensor, from its own amax (current scaling; torchao: tensorwise,
// TransformerEngine: Float8CurrentScaling). x and W are E4M3, dy is E5M2. The amax is exact, so that the scale maps it
// to the largest code. Gradients are sums over more terms that cancel, so dgrad and wgrad accumulate in fp32.
#include "matmul/recipe.h"

namespace trireme {

namespace {

class Fp8TensorwiseRecipe final : public Fp8Recipe {
 public:
  Fp8TensorwiseRecipe() : Fp8Recipe(own_traits(), Accumulate::kSplit) {}
  OperandForms input_forms(const Weight&, bool) const override { return {.current = CurrentCodes::kE4m3}; }
  OperandForms gradient_forms(const Weight&) const override { return {.current = CurrentCodes::kE5m2}; }

 private:
  /// A matrix of 2 bytes an element is read twice, for its amax and for its codes in two layouts. Codes of the store
  /// are only transposed, in backward.
  static RecipeTraits own_traits() {
    RecipeTraits traits = trained_traits("tensorwise", Accumulate::kSplit);
    traits.stores_codes = true;
    traits.rows_apart = false;
    traits.operand_traffic = 6;
    traits.weight_traffic = 2;
    return traits;
  }
};

}  // namespace

const LinearRecipe& fp8_tensorwise_recipe() {
  static const Fp8TensorwiseRecipe recipe;
  return recipe;
}

}  // namespace trireme
