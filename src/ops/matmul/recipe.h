#pragma once
// Private to ops/: the number format and the scales of the operands of the three products of a linear layer y = x W^T,
//
//   forward  y = x W^T      dgrad  dx = dy W      wgrad  dW = dy^T x
//
// A layer asks its recipe which forms of x and dy it reads, has their producers write only these, and passes them to
// the recipe. Each recipe is one object without state: what forward keeps for backward is in Kept, scales are in the
// weight's state. The names of the recipes are in trireme/base/recipe.h, their traits in trireme/ops/matmul/recipe.h.

#include "matmul/operand.h"
#include "matmul/product.h"
#include "trireme/nn/weight.h"
#include "trireme/ops/matmul/recipe.h"

#include <ATen/core/Tensor.h>

namespace trireme {

class LinearRecipe {
 public:
  virtual ~LinearRecipe() = default;

  virtual const RecipeTraits& traits() const = 0;
  /// The forms of x [T, in] that forward reads or keeps for wgrad, and the forms of dy [T, out] that backward reads
  /// (without the bias gradient). `trains`: whether wgrad follows.
  virtual OperandForms input_forms(const Weight& weight, bool trains) const = 0;
  virtual OperandForms gradient_forms(const Weight& weight) const = 0;

  /// The saved values beside W. weight_transposed: only if forward quantized W; dgrad transposes codes of the store.
  struct Kept {
    Fp8Matrix x_transposed, weight_transposed;
  };
  /// x W^T (+ bias) (+ addend) in `dtype`.
  virtual at::Tensor forward(const Operand& x, const Weight& weight, at::ScalarType dtype, const at::Tensor& bias,
                             const Addend& addend, Kept& kept) const = 0;
  /// The part of forward that fills `kept`.
  virtual void keep(const Operand& x, const Weight& weight, Kept& kept) const = 0;
  /// dy W (+ addend) in `dtype`.
  virtual at::Tensor dgrad(const Operand& dy, const Weight& weight, const Kept& kept, at::ScalarType dtype,
                           const Addend& addend) const = 0;
  /// Writes or adds dy^T x to `target`; `plain_x` is defined if the traits say that wgrad reads it.
  virtual void wgrad(const Operand& dy, const at::Tensor& plain_x, const Kept& kept,
                     const GradientTarget& target) const = 0;
};

const LinearRecipe& recipe_of(Recipe recipe);

}  // namespace trireme
