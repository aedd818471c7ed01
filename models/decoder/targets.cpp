#include "models/decoder/targets.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

std::vector<LoraTarget> lora_targets(const DecoderConfig& config, const LoraOptions& lora) {
  const int64_t d = config.hidden_size, f = config.intermediate_size;
  const int64_t q = config.num_attention_heads * config.head_dim, kv = config.num_key_value_heads * config.head_dim;
  const std::vector<LoraTarget> all = {
      {"q_proj", "self_attn.q_proj", kQkvProj, 0, q, d, 0},
      {"k_proj", "self_attn.k_proj", kQkvProj, q, kv, d, 1},
      {"v_proj", "self_attn.v_proj", kQkvProj, q + kv, kv, d, 2},
      {"qkv_proj", "self_attn.qkv_proj", kQkvProj, 0, q + 2 * kv, d, 3},
      {"o_proj", "self_attn.o_proj", kOutProj, 0, d, q, 4},
      {"gate_proj", "mlp.gate_proj", kGateUpProj, 0, f, d, 5},
      {"up_proj", "mlp.up_proj", kGateUpProj, f, f, d, 6},
      {"down_proj", "mlp.down_proj", kDownProj, 0, d, f, 7},
  };
  std::vector<std::string> names;
  for (const LoraTarget& target : all) names.push_back(target.name);
  const auto chosen = [&](const std::string& name) {
    return std::count(lora.targets.begin(), lora.targets.end(), name);
  };
  if (lora.r < 1) throw ConfigError(fmt::format("lora.r is {}; it must be at least 1", lora.r));
  if (!(lora.dropout >= 0 && lora.dropout < 1))
    throw ConfigError(fmt::format("lora.dropout is {}; it must be in [0, 1)", lora.dropout));
  if (lora.targets.empty()) throw ConfigError("lora.target_modules is empty; choose from " + join(names, ", "));
  for (const std::string& name : lora.targets) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw ConfigError(
          fmt::format("lora.target_modules: Llama has no module '{}'.{}", name, did_you_mean(name, names)));
    if (chosen(name) > 1) throw ConfigError(fmt::format("lora.target_modules names '{}' {} times", name, chosen(name)));
  }
  if (chosen("qkv_proj") > 0)
    for (const char* part : {"q_proj", "k_proj", "v_proj"})
      if (chosen(part) > 0)
        throw ConfigError(
            fmt::format("lora.target_modules names qkv_proj and {}: the fused adapter covers it already", part));
  std::vector<LoraTarget> targets;
  for (const LoraTarget& target : all)
    if (chosen(target.name) > 0) targets.push_back(target);
  return targets;
}

std::string lora_module_name(int64_t block, const LoraTarget& target) {
  return fmt::format("model.layers.{}.{}", block, target.module);
}

}  // namespace trireme
