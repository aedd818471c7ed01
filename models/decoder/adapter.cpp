#include "models/decoder/adapter.h"

#include "models/decoder/family.h"
#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/text.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace trireme {

namespace {

at::Tensor to_tensor(const std::vector<float>& values, int64_t rows, int64_t columns) {
  TRIREME_CHECK(static_cast<int64_t>(values.size()) == rows * columns, values.size(), " values for a matrix of ", rows,
                " x ", columns);
  at::Tensor tensor = at::empty({rows, columns}, at::TensorOptions(at::kFloat));
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

std::vector<float> to_vector(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

const AdapterPair& pair_of(const Adapter& adapter, const std::string& module, int64_t r, int64_t in, int64_t out) {
  const auto found = adapter.modules.find(module);
  if (found == adapter.modules.end())
    throw ModelError(fmt::format("the adapter has no module {}, which lora.target_modules asks for", module));
  const AdapterPair& pair = found->second;
  if (pair.r != r || pair.in != in || pair.out != out)
    throw ModelError(fmt::format("adapter module {} maps {} to {} with rank {}, the model needs {} to {} with rank {}",
                                 module, pair.in, pair.out, pair.r, in, out, r));
  return pair;
}

/// The parts that a fused target covers: their modules with the block's prefix, rows.
std::vector<LayerPart> fused_parts(const DecoderModel& model, const std::string& prefix, const LoraTarget& target) {
  std::vector<LayerPart> parts = model.block().layers[static_cast<size_t>(target.layer)].parts;
  for (LayerPart& part : parts) part.module = prefix + part.module;
  return parts;
}

void import_fused(const Adapter& adapter, const DecoderModel& model, const std::string& prefix,
                  const LoraTarget& target, std::map<std::string, at::Tensor>& tensors) {
  const int64_t r = model.lora()->r;
  std::vector<at::Tensor> b;
  const AdapterPair* first = nullptr;
  for (const auto& [module, rows] : fused_parts(model, prefix, target)) {
    const AdapterPair& pair = pair_of(adapter, module, r, target.in, rows);
    if (first == nullptr) first = &pair;
    if (pair.a != first->a)
      throw ModelError(
          fmt::format("adapter module {} has a lora_A of its own, so it cannot start the fused "
                      "qkv_proj adapter: set "
                      "lora.target_modules to [q_proj, k_proj, v_proj] instead of qkv_proj",
                      module));
    b.push_back(to_tensor(pair.b, rows, r));
  }
  const std::string name = prefix + target.module;
  tensors[name + ".lora_A.weight"] = to_tensor(first->a, r, target.in);
  tensors[name + ".lora_B.weight"] = at::cat(b, 0);
}

}  // namespace

std::map<std::string, at::Tensor> import_adapter(const Adapter& adapter, const DecoderModel& model) {
  TRIREME_CHECK(model.lora().has_value(), "import_adapter needs a model with LoRA");
  const LoraOptions& lora = *model.lora();
  if (adapter.config.r != lora.r)
    throw ModelError(fmt::format("the adapter has rank {}, lora.r is {}: set lora.r to {}", adapter.config.r, lora.r,
                                 adapter.config.r));
  if (adapter.config.alpha != lora.alpha)
    throw ModelError(fmt::format("the adapter has alpha {}, lora.alpha is {}: set lora.alpha to {}",
                                 adapter.config.alpha, lora.alpha, adapter.config.alpha));
  std::map<std::string, at::Tensor> tensors;
  std::set<std::string> used;
  for (int64_t block = 0; block < model.config().num_hidden_layers; ++block) {
    const std::string prefix = family_of(model.config()).names.block(block);
    for (const LoraTarget& target : model.targets()) {
      const std::string name = prefix + target.module;
      if (target.fused) {
        import_fused(adapter, model, prefix, target, tensors);
        for (const auto& [module, rows] : fused_parts(model, prefix, target)) used.insert(module);
        continue;
      }
      const AdapterPair& pair = pair_of(adapter, name, lora.r, target.in, target.rows);
      tensors[name + ".lora_A.weight"] = to_tensor(pair.a, lora.r, target.in);
      tensors[name + ".lora_B.weight"] = to_tensor(pair.b, target.rows, lora.r);
      used.insert(name);
    }
  }
  for (const auto& [module, pair] : adapter.modules)
    if (!used.contains(module))
      throw ModelError(
          fmt::format("the adapter has module {}, which lora.target_modules [{}] does not cover: "
                      "add it, else it would "
                      "be lost",
                      module, join(lora.targets, ", ")));
  return tensors;
}

Adapter export_adapter(const std::map<std::string, at::Tensor>& tensors, const DecoderModel& model,
                       const std::string& base_model, std::map<std::string, TokenRows> token_rows) {
  TRIREME_CHECK(model.lora().has_value(), "export_adapter needs a model with LoRA");
  const LoraOptions& lora = *model.lora();
  const auto get = [&](const std::string& name) -> const at::Tensor& {
    const auto found = tensors.find(name);
    TRIREME_CHECK(found != tensors.end(), "no adapter tensor ", name);
    return found->second;
  };
  Adapter adapter;
  adapter.config = {base_model, lora.r, lora.alpha, lora.dropout, {}};
  for (const LoraTarget& target : model.targets()) {
    std::vector<std::string>& names = adapter.config.target_modules;
    if (target.fused)
      for (const LayerPart& part : fused_parts(model, "", target))
        names.push_back(part.module.substr(part.module.rfind('.') + 1));
    else if (std::find(names.begin(), names.end(), target.name) == names.end())
      names.push_back(target.name);
  }
  for (int64_t block = 0; block < model.config().num_hidden_layers; ++block) {
    const std::string prefix = family_of(model.config()).names.block(block);
    for (const LoraTarget& target : model.targets()) {
      const std::string name = prefix + target.module;
      const at::Tensor &a = get(name + ".lora_A.weight"), &b = get(name + ".lora_B.weight");
      TRIREME_CHECK(a.size(0) == lora.r && a.size(1) == target.in && b.size(0) == target.rows, "adapter tensors of ",
                    name, " have shapes ", a.sizes(), " and ", b.sizes());
      if (!target.fused) {
        adapter.modules[name] = {to_vector(a), to_vector(b), lora.r, target.in, target.rows};
        continue;
      }
      int64_t row = 0;
      for (const auto& [module, rows] : fused_parts(model, prefix, target)) {
        adapter.modules[module] = {to_vector(a), to_vector(b.narrow(0, row, rows)), lora.r, target.in, rows};
        row += rows;
      }
    }
  }
  for (const std::string& module : token_modules(model.config())) {
    const auto trained = tensors.find(module + kTokenRowsSuffix);
    if (trained == tensors.end()) continue;
    const std::vector<float> values = to_vector(trained->second);
    const int64_t columns = trained->second.size(1);
    std::map<int64_t, const float*> all;
    TokenRows made, &held = token_rows[module];
    made.columns = columns;
    for (size_t i = 0; i < held.ids.size(); ++i)
      all[held.ids[i]] = held.values.data() + static_cast<int64_t>(i) * columns;
    for (int64_t i = 0; i < trained->second.size(0); ++i) all[lora.rows_begin + i] = values.data() + i * columns;
    for (const auto& [id, row] : all) {
      made.ids.push_back(id);
      made.values.insert(made.values.end(), row, row + columns);
    }
    held = std::move(made);
  }
  adapter.token_rows = std::move(token_rows);
  return adapter;
}

std::string base_hash(const std::filesystem::path& base) {
  std::string all;
  for (const Fingerprint& file : fingerprint_model(base, /*with_weights=*/true))
    if (file.path.ends_with(".safetensors")) all += file.hash;
  return all.empty() ? "" : hex64(xxh3_64(all.data(), all.size()));
}

std::string other_base(const Adapter& adapter, const std::filesystem::path& base, const char* what) {
  const std::string& named = adapter.config.base_model;
  if (const std::string hash = adapter.base_hash.empty() ? "" : base_hash(base); !hash.empty()) {
    if (hash == adapter.base_hash) return "";
    return fmt::format("the adapter was trained on the base {} (hash {}), and {} {} has other weights (hash {})", named,
                       adapter.base_hash, what, base.string(), hash);
  }
  const auto last_name = [](const std::filesystem::path& path) {
    return (path.has_filename() ? path : path.parent_path()).filename().string();
  };
  std::error_code ignored;
  if (named.empty() || std::filesystem::equivalent(named, base, ignored)) return "";
  if (!std::filesystem::exists(named, ignored) && last_name(named) == last_name(base)) return "";  // a name of the hub
  return fmt::format(
      "the adapter names the base {}, {} is {}: the result is right only where both hold the same weights", named, what,
      base.string());
}

DecoderModel model_for_adapter(const DecoderConfig& config, const Adapter& adapter) {
  // The modules that are there decide: target_modules may be a pattern.
  std::set<std::string> names;
  for (const auto& [module, pair] : adapter.modules) names.insert(module.substr(module.rfind('.') + 1));
  try {
    return {config,
            LoraOptions{adapter.config.r, adapter.config.alpha, adapter.config.dropout, {names.begin(), names.end()}}};
  } catch (const ConfigError& error) {
    throw ModelError(fmt::format("the adapter does not fit a {}: {}", config.family, error.what()));
  }
}

}  // namespace trireme
