#include "models/decoder/targets.h"

#include "models/decoder/family.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

/// Every linear layer of a block, and the fused q, k, v.
std::vector<LoraTarget> all_targets(const DecoderConfig& config) {
  const TensorNames& names = family_of(config).names;
  const int64_t d = config.hidden_size, f = config.intermediate_size;
  const int64_t q = config.num_attention_heads * config.head_dim, kv = config.num_key_value_heads * config.head_dim;
  std::vector<LoraTarget> all;
  const auto add = [&](const std::string& module, int parameter, int64_t row_begin, int64_t rows, int64_t in) {
    all.push_back({module.substr(module.rfind('.') + 1), module, parameter, row_begin, rows, in,
                   static_cast<uint64_t>(all.size())});
  };
  if (names.qkv.size() == 1) {
    add(names.qkv[0], kQkvProj, 0, q + 2 * kv, d);
  } else {
    add(names.qkv[0], kQkvProj, 0, q, d);
    add(names.qkv[1], kQkvProj, q, kv, d);
    add(names.qkv[2], kQkvProj, q + kv, kv, d);
    add("self_attn.qkv_proj", kQkvProj, 0, q + 2 * kv, d);
  }
  add(names.output, kOutProj, 0, d, q);
  for (size_t i = 0; i < names.up.size(); ++i) add(names.up[i], kGateUpProj, static_cast<int64_t>(i) * f, f, d);
  add(names.down, kDownProj, 0, d, f);
  return all;
}

bool has_bias(const DecoderConfig& config, int weight) {
  switch (weight) {
    case kQkvProj: return config.qkv_bias;
    case kOutProj: return config.output_bias;
    case kGateUpProj:
    case kDownProj: return config.mlp_bias;
    default: return config.norm == DecoderNorm::kLayer;
  }
}

}  // namespace

int bias_position(const DecoderConfig& config, int weight) {
  if (!has_bias(config, weight)) return -1;
  int position = kBlockWeights;
  for (int before = 0; before < weight; ++before) position += has_bias(config, before) ? 1 : 0;
  return position;
}

int block_parameters(const DecoderConfig& config) {
  int count = kBlockWeights;
  for (int weight = 0; weight < kBlockWeights; ++weight) count += has_bias(config, weight) ? 1 : 0;
  return count;
}

std::vector<LoraTarget> lora_targets(const DecoderConfig& config, const LoraOptions& lora) {
  const std::vector<LoraTarget> all = all_targets(config);
  std::vector<std::string> names;
  for (const LoraTarget& target : all)
    if (std::find(names.begin(), names.end(), target.name) == names.end()) names.push_back(target.name);
  const auto chosen = [&](const std::string& name) {
    return std::count(lora.targets.begin(), lora.targets.end(), name);
  };
  if (lora.r < 1) throw ConfigError(fmt::format("lora.r is {}; it must be at least 1", lora.r));
  if (!(lora.dropout >= 0 && lora.dropout < 1))
    throw ConfigError(fmt::format("lora.dropout is {}; it must be in [0, 1)", lora.dropout));
  if (lora.targets.empty()) throw ConfigError("lora.target_modules is empty; choose from " + join(names, ", "));
  for (const std::string& name : lora.targets) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw ConfigError(fmt::format("lora.target_modules: a {} has no module '{}'.{}", config.family, name,
                                    did_you_mean(name, names)));
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

std::vector<std::string> default_lora_targets(const DecoderConfig& config) {
  const TensorNames& names = family_of(config).names;
  std::vector<std::string> targets;
  const auto add = [&](const std::string& module) { targets.push_back(module.substr(module.rfind('.') + 1)); };
  for (const std::string& module : names.qkv) add(module);
  add(names.output);
  return targets;
}

std::string lora_module_name(const DecoderConfig& config, int64_t block, const LoraTarget& target) {
  return family_of(config).names.block(block) + target.module;
}

}  // namespace trireme
