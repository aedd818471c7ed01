#include "trireme/plan/precision.h"

#include "trireme/ops/matmul/recipe.h"

namespace trireme {

at::ScalarType compute_dtype(const Config& config, bool use_gpu) {
  using Compute = PrecisionSection::Compute;
  const Compute compute = config.precision.compute.value_or(use_gpu ? Compute::kBf16 : Compute::kFp32);
  return compute == Compute::kFp32 ? at::kFloat : compute == Compute::kFp16 ? at::kHalf : at::kBFloat16;
}

Recipe frozen_recipe(const Config& config) {
  const PrecisionSection& precision = config.precision;
  const bool fp8 =
      precision.linear == PrecisionSection::Linear::kFp8 || precision.frozen == PrecisionSection::Frozen::kFp8;
  return config.lora && fp8 ? Recipe::kFp8Frozen : Recipe::kCompute;
}

bool frozen_nf4(const Config& config) {
  return config.lora && config.precision.frozen == PrecisionSection::Frozen::kNf4;
}

bool trains_in_fp8(const Config& config) {
  return !config.lora && config.precision.linear == PrecisionSection::Linear::kFp8;
}

Recipe chosen_fp8_recipe(const Config& config, Recipe automatic) {
  return config.precision.fp8_recipe.value_or(automatic);
}

Recipe trained_recipe(const Config& config, Recipe automatic) {
  return trains_in_fp8(config) ? chosen_fp8_recipe(config, automatic) : Recipe::kCompute;
}

Recipe block_recipe(const Config& config, Recipe automatic) {
  return config.lora ? frozen_recipe(config) : trained_recipe(config, automatic);
}

}  // namespace trireme
