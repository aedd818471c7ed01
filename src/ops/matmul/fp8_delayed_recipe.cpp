// FP8 products of trained weights with one scale per tensor, from the amax of the previous step. x and W are E4M3, dy
// is E5M2; results are in the compute dtype. All products accumulate fast, as in the MLPerf submissions.
#include "matmul/recipe.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

class Fp8DelayedRecipe final : public LinearRecipe {
 public:
  /// Reads a matrix of 2 bytes an element once and writes its codes in two layouts, weights too.
  const RecipeTraits& traits() const override {
    static const RecipeTraits traits = {.name = "delayed",
                                        .trains = true,
                                        .forward = {.fp8 = true},
                                        .dgrad = {.fp8 = true},
                                        .wgrad = {.fp8 = true},
                                        .delayed_scales = true,
                                        .needs_sm90 = true,
                                        .needs_16_bit = true,
                                        .size_multiple = 16,
                                        .token_multiple = 16,
                                        .kept_input_bytes = 1,
                                        .gradient_bytes = 2,
                                        .operand_traffic = 4,
                                        .weight_traffic = 4};
    return traits;
  }
  OperandForms input_forms(const Weight& weight, bool) const override {
    return {.codes = &weight.state.scales.x, .codes_known = *weight.state.scales.known};
  }
  OperandForms gradient_forms(const Weight& weight) const override {
    return {.codes = &weight.state.scales.dy, .codes_known = *weight.state.scales.known};
  }

  at::Tensor forward(const Operand& x, const Weight& weight, at::ScalarType dtype, const at::Tensor& bias,
                     const Addend& addend, Kept& kept) const override {
    const Fp8Matrix w = weight_operand(weight, kept);
    kept.x_transposed = {x.codes.transposed, x.codes.inverse};
    return fp8_product({x.codes.data, x.codes.inverse}, w, kAccumulate, dtype, bias, addend);
  }
  at::Tensor dgrad(const Operand& dy, const Weight& weight, const Kept& kept, at::ScalarType dtype,
                   const Addend& addend) const override {
    return fp8_product({dy.codes.data, dy.codes.inverse}, transposed_weight(weight, kept), kAccumulate, dtype, {},
                       addend);
  }
  void wgrad(const Operand& dy, const at::Tensor&, const Kept& kept, const GradientTarget& target) const override {
    fp8_product_to(target, {dy.codes.transposed, dy.codes.inverse}, kept.x_transposed, kAccumulate);
  }

 private:
  static constexpr Accumulate kAccumulate = Accumulate::kFast;

  static Fp8Matrix weight_operand(const Weight& weight, Kept& kept) {
    if (weight.quantized()) return stored_weight(weight);
    const Fp8LinearScales& scales = weight.state.scales;
    const Fp8Codes w = make_codes({weight.matrix, {}, {}}, scales.weight, *scales.known, false).codes;
    kept.weight_transposed = {w.transposed, w.inverse};
    return {w.data, w.inverse};
  }
};

}  // namespace

const LinearRecipe& fp8_delayed_recipe() {
  static const Fp8DelayedRecipe recipe;
  return recipe;
}

}  // namespace trireme
