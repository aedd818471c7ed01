#pragma once
// The number formats of a run, as the precision section of its configuration asks for them.

#include "trireme/config/config.h"
#include "trireme/nn/weight.h"
#include "trireme/ops/type_name.h"

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace trireme {

/// What weights, activations and gradients are computed in: precision.compute, or bf16 on a GPU and fp32 on a CPU.
at::ScalarType compute_dtype(const Config& config, bool use_gpu);

/// How the matrices of linear layers (ParameterSpec::linear) of frozen units are stored and multiplied: kCompute or
/// kFp8Frozen.
Recipe frozen_recipe(const Config& config);
/// Whether those of trained units are multiplied in FP8. With a lora section none of them is trained.
bool trains_in_fp8(const Config& config);
/// How those of trained units are multiplied: kCompute or, by precision.fp8_recipe, one of the FP8 recipes; `automatic`
/// is the task's answer to auto (TaskFacts).
Recipe trained_recipe(const Config& config, Recipe automatic);

/// What an FP8 recipe costs beside `delayed`, as factors of its times.
struct RecipeCost {
  double backward_products = 1;  // split accumulation of dgrad and wgrad
  double quantisation = 1;       // bytes that quantisation of activations and gradients reads and writes
  double weights = 1;            // the same of the weights, in each pass
};
RecipeCost recipe_cost(Recipe recipe);

/// Passes of trained FP8 products on a GPU have a multiple of this many tokens.
inline constexpr int64_t kFp8Multiple = 16;

}  // namespace trireme
