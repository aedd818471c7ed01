#include "matmul/recipe.h"
#include "trireme/base/error.h"

#include <ATen/ATen.h>

namespace trireme {

namespace {

/// Products in the compute dtype, by the library.
class ComputeRecipe final : public LinearRecipe {
 public:
  OperandForms input_forms(const Weight&, bool) const override { return {.plain = true}; }
  OperandForms gradient_forms(const Weight&) const override { return {.plain = true}; }
  bool wgrad_reads_plain_input() const override { return true; }

  at::Tensor forward(const Operand& x, const Weight& weight, at::ScalarType, const at::Tensor& bias,
                     const Addend& addend, Kept&) const override {
    return plain_product(x.plain, weight.matrix.t(), bias, addend);
  }
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

const LinearRecipe& recipe_of(Recipe recipe) {
  switch (recipe) {
    case Recipe::kCompute: return compute_recipe();
    case Recipe::kFp8Frozen: return fp8_frozen_recipe();
    case Recipe::kFp8Delayed: return fp8_delayed_recipe();
    case Recipe::kFp8Tensorwise: return fp8_tensorwise_recipe();
    case Recipe::kFp8Rowwise: return fp8_rowwise_recipe();
  }
  TRIREME_CHECK(false, "no recipe ", static_cast<int>(recipe));
  return compute_recipe();
}

}  // namespace trireme
