#pragma once
// How a matrix of a unit is stored and multiplied. The unit's store decides it, models pass it on, and ops/matmul/
// implements it, so that models contain no precision branch.

#include "trireme/base/recipe.h"

#include <ATen/core/Tensor.h>

#include <memory>

namespace trireme {

/// Delayed scaling of one tensor: fp32 scalars on the device. codes = saturate(x * scale), x = codes * inverse.
struct Fp8Scale {
  at::Tensor scale, inverse;
  at::Tensor amax;        // raised to the largest |x| since the last update
  bool gradient = false;  // E5M2, largest value 57,344; otherwise E4M3, largest value 448
};

/// The scales of a linear layer y = x W^T + b.
struct Fp8LinearScales {
  Fp8Scale x, weight, dy;
  const bool* known = nullptr;  // false in the first step, which uses each tensor's own amax
};

/// Where wgrad writes a matrix's gradient of one micro-batch, or adds it to the content: [out, in], contiguous, in the
/// compute dtype or fp32.
struct GradientTarget {
  at::Tensor sum;
  bool adds = false;
};

/// Takes the gradient of a trained matrix directly, so that wgrad writes to its final place. The gradient does not pass
/// through autograd, and the matrix does not require grad.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Called once in each backward, before the gradient is computed.
  virtual GradientTarget target() = 0;
  /// Called when the product that writes the target is queued.
  virtual void written() = 0;
};

/// Memory in which the transpose of a matrix of codes stays from one backward to the next. dgrad writes it where it is
/// not valid; the store, whoever changes the codes, makes it invalid.
struct TransposedCodes {
  at::Tensor codes;  // E4M3 [in, out]
  bool valid = false;
};

/// What a store records about a matrix in addition to its values.
struct WeightState {
  Recipe recipe = Recipe::kCompute;  // ops/matmul/recipe.h
  /// Of a matrix of codes: fp32 scalar, value = code * inverse_scale; for trained weights on a GPU 16-byte aligned, as
  /// cuBLASLt requires.
  at::Tensor inverse_scale{};
  Fp8LinearScales scales{};      // RecipeTraits::delayed_scales
  GradientSink* sink = nullptr;  // null: autograd computes the gradient, if the matrix requires grad
  /// Of a frozen matrix, for DoRA: row_squares(), undefined until somebody has computed them. Null: not kept.
  std::shared_ptr<at::Tensor> row_squares{};
  /// Of a whole matrix of codes. Null: dgrad transposes the codes each time.
  std::shared_ptr<TransposedCodes> transposed{};
};

struct Weight {
  /// [out, in]: compute dtype, or E4M3 codes. kFp8Frozen always has codes; the recipes of trained weights take either,
  /// and quantize a matrix of the compute dtype when they use it.
  at::Tensor matrix;
  WeightState state;
  bool quantized() const { return matrix.scalar_type() == at::kFloat8_e4m3fn; }
  bool trained() const { return state.sink != nullptr || matrix.requires_grad(); }
};

}  // namespace trireme
