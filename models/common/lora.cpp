#include "models/common/lora.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace trireme {

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

namespace {

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

void add_name(std::vector<std::string>& names, const std::string& name) {
  if (std::ranges::find(names, name) == names.end()) names.push_back(name);
}

/// ConfigError with all of the problems, if there are any.
void refuse_all(const std::vector<std::string>& problems) {
  if (!problems.empty()) throw ConfigError(join(problems, "; "));
}

/// The options against what the model has. `named`: the paths of its modules, the fused ones too.
void check_options(const std::string& family, const LoraOptions& lora, const std::vector<std::string>& names,
                   const std::vector<std::string>& named, size_t blocks, std::vector<std::string> problems) {
  const auto problem = [&]<class... Args>(fmt::format_string<Args...> text, Args&&... args) {
    problems.push_back(fmt::format(text, std::forward<Args>(args)...));
  };
  if (lora.r < 1) problem("lora.r is {}; it must be at least 1", lora.r);
  if (!(lora.dropout >= 0 && lora.dropout < 1)) problem("lora.dropout is {}; it must be in [0, 1)", lora.dropout);
  const auto check_selector = [&](const ModuleSelector& selector, const char* key) {
    const auto none = [&](const ModuleSelector& one) {
      return std::ranges::none_of(named, [&](const std::string& module) { return selects(one, module); });
    };
    std::set<std::string> seen;
    for (const std::string& name : selector.names) {
      if (!seen.insert(name).second) continue;
      const bool absent = none({{name}});
      if (absent && &selector == &lora.target_modules && selector == LoraOptions().target_modules)
        return problem("lora.target_modules, by default [{}], has '{}', and a {} has no such module: choose from {}",
                       join(selector.names, ", "), name, family, join(names, ", "));
      if (absent) problem("lora.{}: a {} has no module '{}'.{}", key, family, name, did_you_mean(name, names));
      if (const auto times = std::ranges::count(selector.names, name); times > 1)
        problem("lora.{} names '{}' {} times", key, name, times);
    }
    if (!selector.pattern.empty() && none(selector))
      problem("lora.{}: no module of a {} matches '{}'; the whole path must match, such as {}", key, family,
              selector.pattern, named.front());
  };
  if (lora.target_modules.empty()) problem("lora.target_modules is empty; choose from {}", join(names, ", "));
  check_selector(lora.target_modules, "target_modules");
  check_selector(lora.exclude_modules, "exclude_modules");
  for (const int64_t layer : lora.layers_to_transform)
    if (layer < 0 || layer >= static_cast<int64_t>(blocks))
      problem("lora.layers_to_transform has {}, the model's blocks are 0 to {}", layer, blocks - 1);
  refuse_all(problems);
}

/// A fused target has its parts' strength, which must be one.
LoraStrength fused_strength(const BlockLayer& layer, const LoraOptions& lora, const std::string& prefix) {
  const LoraStrength first = strength_of(lora, prefix + layer.parts.front().module);
  for (const LayerPart& part : layer.parts)
    if (!(strength_of(lora, prefix + part.module) == first))
      throw ConfigError(
          fmt::format("{}{} is one adapter over parts to which lora.rank_pattern or lora.alpha_pattern give "
                      "different values: name the parts in lora.target_modules",
                      prefix, layer.fused));
  return first;
}

/// An adapter of qkv_proj or gate_up_proj is one of all their parts in files: a part, or the whole of targeted parts,
/// cannot be excluded.
void check_parts(const LoraOptions& lora, const std::string& prefix, const LoraTarget& fused, const BlockLayer& layer) {
  for (const LayerPart& part : layer.parts) {
    const std::string whole = prefix + fused.module, one = prefix + part.module;
    if (one != whole &&
        ((is_targeted(lora, whole) && is_excluded(lora, one)) || (is_excluded(lora, whole) && is_targeted(lora, one))))
      throw ConfigError(
          fmt::format("lora.exclude_modules: {} has the part {}, and only one of them is excluded: name the parts in "
                      "lora.target_modules and lora.exclude_modules",
                      whole, last_part(part.module)));
  }
}

}  // namespace

std::vector<std::vector<LoraTarget>> lora_targets(const BlockTable& block, const std::string& family,
                                                  const LoraOptions& lora, const std::vector<std::string>& prefixes,
                                                  const std::vector<std::string>& others,
                                                  const std::vector<std::string>& found_before) {
  const std::vector<LoraTarget> all = all_targets(block);
  std::vector<std::string> names, named;
  for (const std::string& prefix : prefixes)
    for (const LoraTarget& target : all) {
      add_name(names, target.name);
      named.push_back(prefix + target.module);
    }
  named.insert(named.end(), others.begin(), others.end());
  check_options(family, lora, names, named, prefixes.size(), found_before);
  std::vector<std::vector<LoraTarget>> blocks;
  std::vector<std::string> adapted;
  for (const std::string& module : others)
    if (!lora.target_modules.all_linear() && is_targeted(lora, module)) adapted.push_back(module);
  for (const std::string& prefix : prefixes) {
    std::vector<LoraTarget>& targets = blocks.emplace_back();
    for (const LoraTarget& target : all) {
      // Patterns mean the modules that the model has in files.
      if (target.fused && !lora.target_modules.pattern.empty()) continue;
      if (target.fused) check_parts(lora, prefix, target, block.layers[static_cast<size_t>(target.layer)]);
      if (!is_targeted(lora, prefix + target.module)) continue;
      const BlockLayer& layer = block.layers[static_cast<size_t>(target.layer)];
      targets.push_back(target);
      targets.back().strength =
          target.fused ? fused_strength(layer, lora, prefix) : strength_of(lora, prefix + target.module);
      for (const LayerPart& part : layer.parts)
        if (target.fused || part.module == target.module) adapted.push_back(prefix + part.module);
    }
    for (const LoraTarget& fused : targets)
      for (const LoraTarget& part : targets)
        if (fused.fused && !part.fused && part.layer == fused.layer)
          throw ConfigError(fmt::format("lora.target_modules names {} and {}: the fused adapter covers it already",
                                        fused.name, part.name));
  }
  if (adapted.empty())
    throw ConfigError("lora.exclude_modules and lora.layers_to_transform leave no module of lora.target_modules");
  std::vector<std::string> problems;
  const auto check_keys = [&](const auto& pattern, const char* key) {
    for (const auto& entry : pattern)
      if (std::ranges::none_of(adapted, [&](const std::string& module) { return key_matches(entry.first, module); }))
        problems.push_back(fmt::format("lora.{}: '{}' matches no module with an adapter.{}", key, entry.first,
                                       std::ranges::find(names, entry.first) != names.end()
                                           ? " A fused adapter has the rank and alpha of its modules: name these"
                                           : did_you_mean(entry.first, names)));
  };
  check_keys(lora.rank_pattern, "rank_pattern");
  check_keys(lora.alpha_pattern, "alpha_pattern");
  refuse_all(problems);
  return blocks;
}

std::vector<TrainedBias> trained_biases(const BlockTable& block, const LoraOptions& lora,
                                        const std::vector<LoraTarget>& targets) {
  std::vector<TrainedBias> biases;
  for (size_t l = 0; l < block.layers.size() && lora.bias != LoraOptions::Bias::kNone; ++l) {
    const BlockLayer& layer = block.layers[l];
    int64_t row = 0;
    for (const LayerPart& part : layer.parts) {
      const bool adapted = std::ranges::any_of(targets, [&](const LoraTarget& target) {
        return target.layer == static_cast<int>(l) && (target.fused || target.module == part.module);
      });
      if (layer.bias && (adapted || lora.bias == LoraOptions::Bias::kAll))
        biases.push_back({part.module, static_cast<int>(l), row, part.rows});
      row += part.rows;
    }
  }
  return biases;
}

std::vector<AdapterShape> adapter_shapes(const std::vector<std::vector<LoraTarget>>& blocks) {
  std::vector<AdapterShape> shapes;
  std::vector<int64_t> counts;
  for (const std::vector<LoraTarget>& targets : blocks) {
    std::vector<bool> taken(shapes.size(), false);  // by a target of this block: q and k may be alike
    for (const LoraTarget& target : targets) {
      const AdapterShape shape{target.layer, target.in, target.rows, target.strength.r};
      size_t i = 0;
      while (i < shapes.size() && (taken[i] || !(shapes[i] == shape))) ++i;
      if (i == shapes.size()) shapes.push_back(shape), counts.push_back(0), taken.push_back(false);
      taken[i] = true;
      ++counts[i];
    }
  }
  for (size_t i = 0; i < shapes.size(); ++i)
    shapes[i].share = static_cast<double>(counts[i]) / static_cast<double>(blocks.size());
  return shapes;
}

std::vector<std::string> default_lora_targets(const BlockTable& block) {
  std::vector<std::string> targets;
  for (const char* layer : {"qkv", "output"})
    for (const LayerPart& part : block.at(layer).parts) targets.push_back(last_part(part.module));
  return targets;
}

std::vector<std::string> adaptable_modules(const BlockTable& block) {
  std::vector<std::string> modules;
  for (const LoraTarget& target : all_targets(block))
    if (!target.fused) modules.push_back(target.module);
  return modules;
}

std::vector<std::string> all_lora_targets(const BlockTable& block) {
  std::vector<std::string> targets;
  for (const LoraTarget& target : all_targets(block))
    if (!target.fused) add_name(targets, target.name);
  return targets;
}

}  // namespace trireme
