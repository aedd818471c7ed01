#pragma once
// Private to ops/: in which number format, and with whose scales, a linear layer y = x W^T takes the operands of its
// three products,
//
//   forward  y = x W^T      dgrad  dx = dy W      wgrad  dW = dy^T x
//
// A layer asks its recipe which forms of x and dy it reads, has their producers write only these, and passes them to
// the recipe. Each recipe is one object without state: what forward keeps for backward is in Kept, scales are in the
// weight's state. A new number format is a new implementation in its own file, with its traits, and a name in
// base/recipe.h.

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
  /// The forms of x [T, in] that forward reads or keeps for wgrad, and those of dy [T, out] that backward reads
  /// (without the bias gradient). `trains`: whether wgrad follows.
  virtual OperandForms input_forms(const Weight& weight, bool trains) const = 0;
  virtual OperandForms gradient_forms(const Weight& weight) const = 0;

  /// What forward keeps for backward in addition to W. weight_transposed: only if forward quantized W; codes of the
  /// store are transposed in dgrad.
  struct Kept {
    Fp8Matrix x_transposed, weight_transposed;
  };
  /// x W^T (+ bias) (+ addend) in `dtype`.
  virtual at::Tensor forward(const Operand& x, const Weight& weight, at::ScalarType dtype, const at::Tensor& bias,
                             const Addend& addend, Kept& kept) const = 0;
  /// dy W (+ addend) in `dtype`.
  virtual at::Tensor dgrad(const Operand& dy, const Weight& weight, const Kept& kept, at::ScalarType dtype,
                           const Addend& addend) const = 0;
  /// Writes or adds dy^T x to `target`; `plain_x` is defined if the traits say that wgrad reads it.
  virtual void wgrad(const Operand& dy, const at::Tensor& plain_x, const Kept& kept,
                     const GradientTarget& target) const = 0;
};

const LinearRecipe& recipe_of(Recipe recipe);

const LinearRecipe& compute_recipe();
const LinearRecipe& fp8_frozen_recipe();
#define TRIREME_DECLARE(Name, word) const LinearRecipe& fp8_##word##_recipe();
TRIREME_TRAINED_FP8_RECIPES(TRIREME_DECLARE)
#undef TRIREME_DECLARE

// Trained weights as FP8 operands with one scale: the store's codes, or codes of a matrix that comes in the compute
// dtype.

/// W as operand of forward, with the scale of its own amax. Keeps the transposed copy for dgrad if it is made here.
Fp8Matrix current_weight(const Weight& weight, LinearRecipe::Kept& kept);

/// The store's codes [out, in].
Fp8Matrix stored_weight(const Weight& weight);

/// W^T [in, out] as operand of dgrad: the kept copy, or the store's codes transposed in one pass over their bytes.
Fp8Matrix transposed_weight(const Weight& weight, const LinearRecipe::Kept& kept);

}  // namespace trireme
