#include "models/common/lora.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

/// Every part of every product, and the fused modules.
std::vector<LoraTarget> all_targets(const BlockTable& block) {
  std::vector<LoraTarget> all;
  for (size_t l = 0; l < block.layers.size(); ++l) {
    const BlockLayer& layer = block.layers[l];
    if (!layer.product()) continue;
    const auto add = [&](const std::string& module, int64_t begin, int64_t rows, bool fused) {
      all.push_back({last_part(module), module, static_cast<int>(l), begin, rows, layer.in, fused, all.size()});
    };
    int64_t row = 0;
    for (const LayerPart& part : layer.parts) {
      add(part.module, row, part.rows, false);
      row += part.rows;
    }
    if (!layer.fused.empty()) add(layer.fused, 0, row, true);
  }
  return all;
}

}  // namespace

std::vector<LoraTarget> lora_targets(const BlockTable& block, const std::string& family, const LoraOptions& lora) {
  const std::vector<LoraTarget> all = all_targets(block);
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
      throw ConfigError(
          fmt::format("lora.target_modules: a {} has no module '{}'.{}", family, name, did_you_mean(name, names)));
    if (chosen(name) > 1) throw ConfigError(fmt::format("lora.target_modules names '{}' {} times", name, chosen(name)));
  }
  std::vector<LoraTarget> targets;
  for (const LoraTarget& target : all)
    if (chosen(target.name) > 0) targets.push_back(target);
  for (const LoraTarget& fused : targets)
    for (const LoraTarget& part : targets)
      if (fused.fused && !part.fused && part.layer == fused.layer)
        throw ConfigError(fmt::format("lora.target_modules names {} and {}: the fused adapter covers it already",
                                      fused.name, part.name));
  return targets;
}

std::vector<std::string> default_lora_targets(const BlockTable& block) {
  std::vector<std::string> targets;
  for (const char* layer : {"qkv", "output"})
    for (const LayerPart& part : block.at(layer).parts) targets.push_back(last_part(part.module));
  return targets;
}

}  // namespace trireme
