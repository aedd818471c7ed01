#pragma once
// How a matrix of a unit is stored and multiplied. The unit's store decides it, models pass it on, ops/matmul/ acts on
// it: models contain no precision branch.

#include <ATen/core/Tensor.h>

namespace trireme {

/// How the products of a linear layer take their operands (src/ops/matmul/recipe.h has one implementation each).
enum class Recipe {
  kCompute,     // all three products in the compute dtype
  kFp8Frozen,   // weight stored in E4M3 with one scale, never trained; activations and gradients with one scale a row
  kFp8Delayed,  // trained in FP8; one scale a tensor, from the amax of the step before
};

/// Delayed scaling of one tensor: fp32 scalars on the device. codes = saturate(x * scale), x = codes * inverse.
struct Fp8Scale {
  at::Tensor scale, inverse;
  at::Tensor amax;        // raised to the greatest |x| since the last update
  bool gradient = false;  // E5M2, largest value 57,344; else E4M3, largest value 448
};

/// Those of a linear layer y = x W^T + b.
struct Fp8LinearScales {
  Fp8Scale x, weight, dy;
  const bool* known = nullptr;  // false until a step has ended: each tensor's own amax is taken then
};

/// What a store knows about a matrix beside its values.
struct WeightState {
  Recipe recipe = Recipe::kCompute;
  at::Tensor inverse_scale;  // kFp8Frozen: fp32 scalar; value = code * inverse_scale
  Fp8LinearScales scales;    // kFp8Delayed
};

struct Weight {
  at::Tensor matrix;  // [out, in]: compute dtype, or E4M3 codes (kFp8Frozen)
  WeightState state;
};

}  // namespace trireme
