// Frozen weights in E4M3 with one scale each; inputs and output gradients are quantized with one scale per row. All in
// E4M3: a scale per row makes the range of E5M2 unnecessary, and E4M3 has one more bit of mantissa.
#include "matmul/recipe.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

class Fp8FrozenRecipe final : public LinearRecipe {
 public:
  /// The norm and the activation before a product write codes, one byte, instead of the plain form.
  const RecipeTraits& traits() const override {
    static const RecipeTraits traits = {.name = "frozen",
                                        .trains = false,
                                        .forward = {.fp8 = true},
                                        .dgrad = {.fp8 = true},
                                        .stores_codes = true,
                                        .needs_sm90 = true,
                                        .size_multiple = 16,
                                        .gradient_bytes = 1,
                                        .keeps_activations_in_fp8 = true,
                                        .operand_traffic = 1};
    return traits;
  }
  OperandForms input_forms(const Weight&, bool) const override { return {.rows = true}; }
  OperandForms gradient_forms(const Weight&) const override { return {.rows = true}; }

  at::Tensor forward(const Operand& x, const Weight& weight, at::ScalarType dtype, const at::Tensor& bias,
                     const Addend& addend, Kept&) const override {
    return fp8_product(of_rows(x.rows), of_rows(weight.matrix, weight.state.inverse_scale), Accumulate::kFast, dtype,
                       bias, addend);
  }
  /// Hopper multiplies FP8 operands along their inner dimension only, so the weight is transposed first, in one pass
  /// over its bytes. The transposed copy is freed afterwards.
  at::Tensor dgrad(const Operand& dy, const Weight& weight, const Kept&, at::ScalarType dtype,
                   const Addend& addend) const override {
    const at::Tensor transposed = transpose_codes(weight.matrix);
    return fp8_product(of_rows(dy.rows), of_rows(transposed, weight.state.inverse_scale), Accumulate::kFast, dtype, {},
                       addend);
  }
  void wgrad(const Operand&, const at::Tensor&, const Kept&, const GradientTarget&) const override {
    TRIREME_CHECK(false, "wgrad of a frozen FP8 weight: frozen weights have no gradient");
  }
};

}  // namespace

const LinearRecipe& fp8_frozen_recipe() {
  static const Fp8FrozenRecipe recipe;
  return recipe;
}

}  // namespace trireme
