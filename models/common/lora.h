#pragma once
// LoRA on the products of a block: the rows of a weight that a target names, and its name in PEFT.

#include "trireme/base/lora.h"
#include "trireme/nn/block.h"
#include "trireme/nn/model_shape.h"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// One adapter of one block.
struct LoraTarget {
  std::string name;    // "q_proj"
  std::string module;  // inside the block: "self_attn.q_proj"
  int layer = 0;       // of BlockTable::layers
  int64_t row_begin = 0, rows = 0, in = 0;
  bool fused = false;  // covers all parts of its layer, which are separate in PEFT
  uint64_t index = 0;  // index of the module among all of the block, independent of the chosen targets: key of dropout
  LoraStrength strength = {};
  bool operator==(const LoraTarget&) const = default;
};

/// The end of the name of DoRA's magnitudes of a module.
inline constexpr const char* kMagnitudeSuffix = ".lora_magnitude_vector";

/// Rows of the bias of a layer that are trained.
struct TrainedBias {
  std::string module;  // inside the block: "self_attn.q_proj"
  int layer = 0;       // of BlockTable::layers
  int64_t row_begin = 0, rows = 0;
};

/// The targets of each block, in the order of the table. `prefixes`: of the modules of each block,
/// "model.layers.3."; `family` begins messages. ConfigError: a name, a pattern, a key of a pattern or a block that no
/// module has (`others` are its modules that are not in blocks), a name twice, a fused target beside one of its parts
/// or over parts of different strength, no target, r or dropout out of range; and the problems that were
/// `found_before`.
std::vector<std::vector<LoraTarget>> lora_targets(const BlockTable& block, const std::string& family,
                                                  const LoraOptions& lora, const std::vector<std::string>& prefixes,
                                                  const std::vector<std::string>& others,
                                                  const std::vector<std::string>& found_before);
/// The trained biases of a block with these targets, as lora.bias says.
std::vector<TrainedBias> trained_biases(const BlockTable& block, const LoraOptions& lora,
                                        const std::vector<LoraTarget>& targets);

/// The adapters of all blocks as the plan counts them: alike ones together.
std::vector<AdapterShape> adapter_shapes(const std::vector<std::vector<LoraTarget>>& blocks);

/// Names of attention's layers: the targets of a lora section that names none, where the model has them.
std::vector<std::string> default_lora_targets(const BlockTable& block);
/// "q_proj" of "model.layers.0.self_attn.q_proj".
std::string last_part(const std::string& module);
/// Modules inside of a block ("self_attn.q_proj") that can have an adapter, without the fused ones.
std::vector<std::string> adaptable_modules(const BlockTable& block);
/// Names of all layers that an adapter can have, without the fused ones: peft's all-linear.
std::vector<std::string> all_lora_targets(const BlockTable& block);

}  // namespace trireme
