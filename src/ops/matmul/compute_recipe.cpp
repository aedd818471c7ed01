#include "matmul/recipe.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

/// Products in the compute dtype, by the library.
class ComputeRecipe final : public LinearRecipe {
 public:
  const RecipeTraits& traits() const override {
    static const RecipeTraits traits = {.name = "compute", .trains = true, .wgrad_reads_plain_input = true};
    return traits;
  }
  OperandForms input_forms(const Weight&, bool) const override { return {.plain = true}; }
  OperandForms gradient_forms(const Weight&) const override { return {.plain = true}; }

  at::Tensor forward(const Operand& x, const Weight& weight, at::ScalarType, const at::Tensor& bias,
                     const Addend& addend, Kept&) const override {
    return plain_product(x.plain, weight.matrix.t(), bias, addend);
  }
  void keep(const Operand&, const Weight&, Kept&) const override {}
  at::Tensor dgrad(const Operand& dy, const Weight& weight, const Kept&, at::ScalarType,
                   const Addend& addend) const override {
    return plain_product(dy.plain, weight.matrix, {}, addend);
  }
  void wgrad(const Operand& dy, const at::Tensor& plain_x, const Kept&, const GradientTarget& target) const override {
    plain_product_to(target, dy.plain.t(), plain_x);
  }
};

}  // namespace

const LinearRecipe& compute_recipe() {
  static const ComputeRecipe recipe;
  return recipe;
}

}  // namespace trireme
