#pragma once
// The times of a step's parts, from the rates of a machine and what a model says of its work.

#include "trireme/nn/block_work.h"
#include "trireme/ops/matmul/recipe.h"
#include "trireme/plan/plan.h"
#include "trireme/plan/precision.h"

#include <cstdint>

namespace trireme {

/// The times of a step that do not depend on the model, from `input.rates`.
void set_rates(PlanInput& input);
/// How a model's blocks are multiplied.
struct BlockProducts {
  const RecipeTraits& recipe;
  bool trained = true;  // matrices have weight gradients
  int64_t head_size = 0;
  bool attention_dropout = false;
};
/// Sets the times of a block (StepTimes::block_forward, block_backward, norms_forward, mlp_forward, pass).
void set_block_times(const BlockWork& work, const BlockProducts& products, PlanInput& input);

}  // namespace trireme
