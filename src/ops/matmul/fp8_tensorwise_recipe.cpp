// FP8 products of trained weights with one scale per tensor, from its own amax (current scaling; torchao: tensorwise,
// TransformerEngine: Float8CurrentScaling). x and W are E4M3, dy is E5M2. The amax is exact, so that the scale maps it
// to the largest code. Gradients are sums over more terms that cancel, so dgrad and wgrad accumulate in fp32.
#include "matmul/recipe.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

class Fp8TensorwiseRecipe final : public LinearRecipe {
 public:
  /// A matrix of 2 bytes an element is read twice, for its amax and for its codes in two layouts. Codes of the store
  /// are only transposed, in backward.
  const RecipeTraits& traits() const override {
    static const RecipeTraits traits = {.name = "tensorwise",
                                        .trains = true,
                                        .forward = {.fp8 = true},
                                        .dgrad = {.fp8 = true, .slowdown = kSplitSlowdown},
                                        .wgrad = {.fp8 = true, .slowdown = kSplitSlowdown},
                                        .stores_codes = true,
                                        .needs_sm90 = true,
                                        .needs_16_bit = true,
                                        .size_multiple = 16,
                                        .token_multiple = 16,
                                        .kept_input_bytes = 1,
                                        .gradient_bytes = 2,
                                        .operand_traffic = 6,
                                        .weight_traffic = 2};
    return traits;
  }
  OperandForms input_forms(const Weight&, bool) const override { return {.current = CurrentCodes::kE4m3}; }
  OperandForms gradient_forms(const Weight&) const override { return {.current = CurrentCodes::kE5m2}; }

  at::Tensor forward(const Operand& x, const Weight& weight, at::ScalarType dtype, const at::Tensor& bias,
                     const Addend& addend, Kept& kept) const override {
    const Fp8Matrix w = current_weight(weight, kept);
    kept.x_transposed = {x.codes.transposed, x.codes.inverse};
    return fp8_product({x.codes.data, x.codes.inverse}, w, Accumulate::kFast, dtype, bias, addend);
  }
  at::Tensor dgrad(const Operand& dy, const Weight& weight, const Kept& kept, at::ScalarType dtype,
                   const Addend& addend) const override {
    return fp8_product({dy.codes.data, dy.codes.inverse}, transposed_weight(weight, kept), Accumulate::kSplit, dtype,
                       {}, addend);
  }
  void wgrad(const Operand& dy, const at::Tensor&, const Kept& kept, const GradientTarget& target) const override {
    fp8_product_to(target, {dy.codes.transposed, dy.codes.inverse}, kept.x_transposed, Accumulate::kSplit);
  }
};

}  // namespace

const LinearRecipe& fp8_tensorwise_recipe() {
  static const Fp8TensorwiseRecipe recipe;
  return recipe;
}

}  // namespace trireme
