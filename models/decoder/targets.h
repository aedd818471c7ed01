#pragma once
// Which rows of which block weight each LoRA target names, and under which name PEFT keeps it.

#include "models/decoder/decoder.h"

#include <string>
#include <vector>

namespace trireme {

/// Position of each weight inside a block's unit; the biases follow. kGateUpProj: the only up projection where the MLP
/// has no gate.
enum BlockParameter { kInputNorm, kQkvProj, kOutProj, kPostAttentionNorm, kGateUpProj, kDownProj, kBlockWeights };
/// Position of a weight's bias inside a block's unit; -1: it has none.
int bias_position(const DecoderConfig& config, int weight);
/// Parameters of a block's unit.
int block_parameters(const DecoderConfig& config);

struct LoraTarget {
  std::string name;    // "q_proj"
  std::string module;  // inside the block: "self_attn.q_proj"
  int parameter = 0;   // BlockParameter
  int64_t row_begin = 0, rows = 0, in = 0;
  uint64_t index = 0;  // of the name in the list of all targets: keys dropout, whatever subset is chosen
};

/// The chosen targets in the order of the list of all targets, whatever the order in the options.
/// A name may stand for two layers (GPT-2's c_proj). ConfigError: unknown name, a name twice, qkv_proj beside q_proj,
/// k_proj or v_proj, none, r or dropout out of range.
std::vector<LoraTarget> lora_targets(const DecoderConfig& config, const LoraOptions& lora);

/// Names of attention's layers: the targets of a lora section that names none, where the model has them.
std::vector<std::string> default_lora_targets(const DecoderConfig& config);

/// "model.layers.3.self_attn.q_proj".
std::string lora_module_name(const DecoderConfig& config, int64_t block, const LoraTarget& target);

/// The modules with a row for each token, the embedding first; the name of the rows that are trained of one.
std::vector<std::string> token_modules(const DecoderConfig& config);
inline constexpr const char* kTokenRowsSuffix = ".token_adapter.trainable_tokens_delta";

}  // namespace trireme
