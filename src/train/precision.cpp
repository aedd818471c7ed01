#include "trireme/train/precision.h"

namespace trireme {

at::ScalarType compute_dtype(const Config& config, bool use_gpu) {
  const std::string name = config.precision.compute.value_or(use_gpu ? "bf16" : "fp32");
  return name == "fp32" ? at::kFloat : name == "fp16" ? at::kHalf : at::kBFloat16;
}

Recipe frozen_recipe(const Config& config) {
  return config.lora && config.precision.linear == "fp8" ? Recipe::kFp8Frozen : Recipe::kCompute;
}

Recipe trained_recipe(const Config& config) {
  if (config.lora || config.precision.linear != "fp8") return Recipe::kCompute;
  const std::string& name = config.precision.fp8_recipe;
  return name == "rowwise"      ? Recipe::kFp8Rowwise
         : name == "tensorwise" ? Recipe::kFp8Tensorwise
                                : Recipe::kFp8Delayed;  // and auto
}

}  // namespace trireme
