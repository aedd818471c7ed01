#pragma once
// The number formats of a run, from the precision section of its configuration.

#include "trireme/config/config.h"
#include "trireme/nn/scalar_type.h"
#include "trireme/nn/weight.h"

#include <c10/core/ScalarType.h>

namespace trireme {

/// The dtype of weights, activations and gradients: precision.compute, or bf16 on a GPU and fp32 on a CPU.
at::ScalarType compute_dtype(const Config& config, bool use_gpu);

/// How the matrices of linear layers (ParameterSpec::linear) of frozen units are stored and multiplied: kCompute or
/// kFp8Frozen.
Recipe frozen_recipe(const Config& config);
/// Whether they are stored in NF4, and expanded to the compute dtype for each use.
bool frozen_nf4(const Config& config);
/// Whether the matrices of trained units are multiplied in FP8. False with a lora section, where no such matrix is
/// trained.
bool trains_in_fp8(const Config& config);
/// The FP8 recipe that precision.fp8_recipe names; `automatic` is the task's answer to auto (TaskFacts).
Recipe chosen_fp8_recipe(const Config& config, Recipe automatic);
/// How the matrices of trained units are multiplied: kCompute or the chosen FP8 recipe.
Recipe trained_recipe(const Config& config, Recipe automatic);
/// How a block's matrices are multiplied: frozen_recipe() with a lora section, otherwise trained_recipe().
Recipe block_recipe(const Config& config, Recipe automatic);

}  // namespace trireme
