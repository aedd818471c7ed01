#pragma once
// LoRA on the products of a block: the rows of a weight that a target names, and its name in PEFT.

#include "trireme/nn/block.h"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

struct LoraOptions {
  int64_t r = 0;
  double alpha = 0, dropout = 0;
  /// Layers of a block by the last part of their modules (q_proj k_proj v_proj o_proj gate_proj up_proj down_proj;
  /// GPT-2: c_attn c_proj c_fc; Phi-3: qkv_proj gate_up_proj), or qkv_proj (one fused adapter over q, k, v).
  std::vector<std::string> targets;
  /// Rows [rows_begin, rows_end) of the embedding and the output matrix are trained too (none where they are equal):
  /// peft's trainable_token_indices. They follow the adapters in their unit, and replace the base's before each use.
  int64_t rows_begin = 0, rows_end = 0;
};

struct LoraTarget {
  std::string name;    // "q_proj"
  std::string module;  // inside the block: "self_attn.q_proj"
  int layer = 0;       // of BlockTable::layers
  int64_t row_begin = 0, rows = 0, in = 0;
  bool fused = false;  // covers all parts of its layer, which are separate in PEFT
  uint64_t index = 0;  // index of the module among all of the block, independent of the chosen targets: key of dropout
};

/// The chosen targets in the order of the table. A name may mean two layers (GPT-2's c_proj). `family` begins messages.
/// ConfigError: unknown name, a name twice, a fused target beside one of its parts, none, r or dropout out of range.
std::vector<LoraTarget> lora_targets(const BlockTable& block, const std::string& family, const LoraOptions& lora);

/// Names of attention's layers: the targets of a lora section that names none, where the model has them.
std::vector<std::string> default_lora_targets(const BlockTable& block);

}  // namespace trireme
