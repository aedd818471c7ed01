#include "models/decoder/adapter.h"

#include "models/common/stored.h"
#include "models/decoder/family.h"
#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/text.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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

const AdapterPair& pair_of(const Adapter& adapter, const std::string& module, const LoraStrength& strength, int64_t in,
                           int64_t out) {
  const auto found = adapter.modules.find(module);
  if (found == adapter.modules.end())
    throw ModelError(fmt::format("the adapter has no module {}, which lora.target_modules asks for", module));
  const AdapterPair& pair = found->second;
  if (pair.r != strength.r || pair.in != in || pair.out != out)
    throw ModelError(fmt::format("adapter module {} maps {} to {} with rank {}, the model needs {} to {} with rank {}",
                                 module, pair.in, pair.out, pair.r, in, out, strength.r));
  if (const double scale = strength_of(adapter.config.lora, module).scale; scale != strength.scale)
    throw ModelError(
        fmt::format("adapter module {} is scaled by {}, the configuration scales it by {}: give lora.alpha, "
                    "lora.alpha_pattern and lora.use_rslora the adapter's values",
                    module, scale, strength.scale));
  return pair;
}

/// The parts that a fused target covers: their modules with the block's prefix, rows.
std::vector<LayerPart> fused_parts(const DecoderModel& model, const std::string& prefix, const LoraTarget& target) {
  std::vector<LayerPart> parts = model.block().layers[static_cast<size_t>(target.layer)].parts;
  for (LayerPart& part : parts) part.module = prefix + part.module;
  return parts;
}

/// target_modules as the files of an adapter have them: without fused modules, which peft does not know.
ModuleSelector saved_targets(const DecoderModel& model) {
  const ModuleSelector& chosen = model.lora()->target_modules;
  if (chosen.all_linear()) return {all_lora_targets(model.block())};
  if (!chosen.pattern.empty()) return chosen;
  ModuleSelector saved;
  for (const std::string& name : chosen.names) {
    const size_t last = name.rfind('.') + 1;
    const auto fused = std::ranges::find_if(model.block().layers, [&](const BlockLayer& layer) {
      return !layer.fused.empty() && (layer.fused == name || layer.fused.ends_with("." + name.substr(last)));
    });
    if (fused == model.block().layers.end())
      saved.names.push_back(name);
    else
      for (const LayerPart& part : fused->parts)
        saved.names.push_back(name.substr(0, last) + part.module.substr(part.module.rfind('.') + 1));
  }
  return saved;
}

void import_magnitude(const AdapterPair& pair, const std::string& module, std::map<std::string, at::Tensor>& tensors) {
  if (!pair.magnitude.empty()) tensors[module + kMagnitudeSuffix] = to_tensor(pair.magnitude, 1, pair.out)[0];
}

void import_fused(const Adapter& adapter, const DecoderModel& model, const std::string& prefix,
                  const LoraTarget& target, std::map<std::string, at::Tensor>& tensors) {
  const int64_t r = target.strength.r;
  std::vector<at::Tensor> b;
  const AdapterPair* first = nullptr;
  for (const auto& [module, rows] : fused_parts(model, prefix, target)) {
    const AdapterPair& pair = pair_of(adapter, module, target.strength, target.in, rows);
    if (first == nullptr) first = &pair;
    if (pair.a != first->a)
      throw ModelError(
          fmt::format("adapter module {} has a lora_A of its own, so it cannot start the fused "
                      "qkv_proj adapter: set "
                      "lora.target_modules to [q_proj, k_proj, v_proj] instead of qkv_proj",
                      module));
    b.push_back(to_tensor(pair.b, rows, r));
    import_magnitude(pair, module, tensors);
  }
  const std::string name = prefix + target.module;
  tensors[name + ".lora_A.weight"] = to_tensor(first->a, r, target.in);
  tensors[name + ".lora_B.weight"] = at::cat(b, 0);
}

}  // namespace

namespace {

/// Names and shapes of the tensors that an adapter has in place of the base model's.
std::map<std::string, std::vector<int64_t>> saved_shapes(const DecoderModel& model) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (size_t u = 0; u < model.units().size(); ++u) {
    if (!model.of_adapter(u)) continue;
    for (const ParameterSpec& parameter : model.units()[u].parameters)
      for (const ParameterPart& part : parameter.parts) {
        if (!part.name.ends_with(".bias") && (model.units()[u].replicated || !part.name.ends_with(".weight"))) continue;
        std::vector<int64_t>& shape = shapes[part.name];
        shape = parameter.shape;
        shape[0] = part.rows;
      }
  }
  return shapes;
}

void import_saved(const Adapter& adapter, const DecoderModel& model, std::map<std::string, at::Tensor>& tensors) {
  const TensorNames& names = family_of(model.config()).names;
  const auto shapes = saved_shapes(model);
  for (const auto& [name, tensor] : adapter.saved) {
    const auto shape = shapes.find(name);
    if (shape == shapes.end()) {
      // peft keeps a tied output matrix beside the embedding that it is.
      const auto embedding = adapter.saved.find(names.embedding + ".weight");
      if (name == names.head + ".weight" && model.tied() && embedding != adapter.saved.end() &&
          embedding->second.values == tensor.values)
        continue;
      throw ModelError(
          fmt::format("the adapter has {} in place of the base model's, which lora.modules_to_save and "
                      "lora.bias do not ask for: add it, else it would be lost",
                      name));
    }
    if (shape->second != tensor.shape)
      throw ModelError(fmt::format("the adapter's {} has shape [{}], the model needs [{}]", name,
                                   fmt::join(tensor.shape, ", "), fmt::join(shape->second, ", ")));
    tensors[name] = at::empty(tensor.shape, at::kFloat);
    std::copy(tensor.values.begin(), tensor.values.end(), tensors[name].mutable_data_ptr<float>());
  }
  for (const auto& [name, shape] : shapes)
    if (!adapter.saved.contains(name))
      throw ModelError(
          fmt::format("the adapter has no {}, which lora.modules_to_save or lora.bias asks for: leave it out", name));
}

}  // namespace

std::map<std::string, at::Tensor> import_adapter(const Adapter& adapter, const DecoderModel& model) {
  TRIREME_CHECK(model.lora().has_value(), "import_adapter needs a model with LoRA");
  const LoraOptions& lora = *model.lora();
  const LoraOptions& theirs = adapter.config.lora;
  if (!(theirs.alpha > 0))
    throw ModelError(fmt::format("lora_alpha of its adapter_config.json is {}: an adapter is trained with one above 0",
                                 theirs.alpha));
  std::vector<std::string> settings;
  if (theirs.r != lora.r) settings.push_back(fmt::format("lora.r to {}", theirs.r));
  if (theirs.alpha != lora.alpha) settings.push_back(fmt::format("lora.alpha to {}", theirs.alpha));
  if (theirs.use_rslora != lora.use_rslora && theirs.r > 1)  // with rank 1 both scales are equal
    settings.push_back(fmt::format("lora.use_rslora to {}", theirs.use_rslora));
  if (theirs.use_dora != lora.use_dora) settings.push_back(fmt::format("lora.use_dora to {}", theirs.use_dora));
  if (model.config().tie_word_embeddings && !lora.modules_to_save.empty() && !theirs.modules_to_save.empty() &&
      theirs.ensure_weight_tying != lora.ensure_weight_tying)
    settings.push_back(fmt::format("lora.ensure_weight_tying to {}", theirs.ensure_weight_tying));
  if (!settings.empty())
    throw ModelError(fmt::format("the adapter was trained with other settings: set {}", join(settings, ", ")));
  std::map<std::string, at::Tensor> tensors;
  std::set<std::string> used;
  for (int64_t block = 0; block < model.config().num_hidden_layers; ++block) {
    const std::string prefix = family_of(model.config()).names.block(block);
    for (const LoraTarget& target : model.targets()[static_cast<size_t>(block)]) {
      const std::string name = prefix + target.module;
      if (target.fused) {
        import_fused(adapter, model, prefix, target, tensors);
        for (const auto& [module, rows] : fused_parts(model, prefix, target)) used.insert(module);
        continue;
      }
      const AdapterPair& pair = pair_of(adapter, name, target.strength, target.in, target.rows);
      tensors[name + ".lora_A.weight"] = to_tensor(pair.a, pair.r, target.in);
      tensors[name + ".lora_B.weight"] = to_tensor(pair.b, target.rows, pair.r);
      import_magnitude(pair, name, tensors);
      used.insert(name);
    }
  }
  if (const auto& strength = model.embedding_adapter()) {
    const std::string& name = family_of(model.config()).names.embedding;
    const auto found = adapter.modules.find(name);
    // Tokens that were added since have a zero in A.
    const int64_t vocab = model.config().vocab_size, known = found == adapter.modules.end() ? vocab : found->second.in;
    const AdapterPair& pair = pair_of(adapter, name, *strength, std::min(known, vocab), model.config().hidden_size);
    at::Tensor& a = tensors[name + ".lora_embedding_A"];
    a = at::zeros({vocab, pair.r}, at::kFloat);
    a.narrow(0, 0, pair.in).copy_(to_tensor(pair.a, pair.r, pair.in).t());
    tensors[name + ".lora_embedding_B"] = to_tensor(pair.b, pair.out, pair.r);
    used.insert(name);
  }
  import_saved(adapter, model, tensors);
  for (const auto& [module, pair] : adapter.modules)
    if (!used.contains(module))
      throw ModelError(fmt::format(
          "the adapter has module {}, which lora.target_modules {} does not cover: add it, else it would be "
          "lost",
          module,
          lora.target_modules.pattern.empty() ? "[" + join(lora.target_modules.names, ", ") + "]"
                                              : lora.target_modules.pattern));
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
  adapter.config = {base_model, lora};
  adapter.config.lora.trainable_token_indices.clear();
  adapter.config.lora.target_modules = saved_targets(model);
  for (int64_t block = 0; block < model.config().num_hidden_layers; ++block) {
    const std::string prefix = family_of(model.config()).names.block(block);
    for (const LoraTarget& target : model.targets()[static_cast<size_t>(block)]) {
      const std::string name = prefix + target.module;
      const int64_t r = target.strength.r;
      const at::Tensor &a = get(name + ".lora_A.weight"), &b = get(name + ".lora_B.weight");
      TRIREME_CHECK(a.size(0) == r && a.size(1) == target.in && b.size(0) == target.rows, "adapter tensors of ", name,
                    " have shapes ", a.sizes(), " and ", b.sizes());
      std::vector<LayerPart> parts = {{name, target.rows}};
      if (target.fused) parts = fused_parts(model, prefix, target);
      int64_t row = 0;
      for (const auto& [module, rows] : parts) {
        AdapterPair& pair = adapter.modules[module];
        pair = {to_vector(a), to_vector(b.narrow(0, row, rows)), r, target.in, rows};
        if (lora.use_dora) pair.magnitude = to_vector(get(module + kMagnitudeSuffix));
        row += rows;
      }
    }
  }
  if (const auto& strength = model.embedding_adapter()) {
    const std::string& name = family_of(model.config()).names.embedding;
    const at::Tensor &a = get(name + ".lora_embedding_A"), &b = get(name + ".lora_embedding_B");
    adapter.modules[name] = {to_vector(a.t()), to_vector(b), strength->r, a.size(0), b.size(0), {}, true};
  }
  for (const auto& [name, shape] : saved_shapes(model)) adapter.saved[name] = {shape, to_vector(get(name))};
  if (const TensorNames& names = family_of(model.config()).names; !lora.modules_to_save.empty() && model.tied()) {
    // As peft, the output matrix beside the embedding that it is.
    adapter.saved[names.head + ".weight"] = adapter.saved.at(names.embedding + ".weight");
    adapter.config.lora.modules_to_save = {names.embedding.substr(names.embedding.rfind('.') + 1)};
  }
  for (const std::string& module : token_modules(model.config())) {
    if (adapter.saved.contains(module + ".weight")) token_rows.erase(module);
    const auto trained = tensors.find(module + kTokenRowsSuffix);
    if (trained == tensors.end()) continue;
    const std::vector<float> values = to_vector(trained->second);
    const int64_t columns = trained->second.size(1);
    std::map<int64_t, const float*> all;
    TokenRows made, &held = token_rows[module];
    made.columns = columns;
    for (size_t i = 0; i < held.ids.size(); ++i)
      all[held.ids[i]] = held.values.data() + static_cast<int64_t>(i) * columns;
    const std::vector<int64_t>& ids = model.token_rows().at(module);
    for (size_t i = 0; i < ids.size(); ++i) all[ids[i]] = values.data() + static_cast<int64_t>(i) * columns;
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
  return base_hash(fingerprint_model(base, /*with_weights=*/true));
}

std::string base_hash(const std::vector<Fingerprint>& files) {
  std::string all;
  for (const Fingerprint& file : files)
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

std::string ignored_adapter(const std::filesystem::path& base) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(base / "adapter_config.json", ignored)) return "";
  return fmt::format(
      "{} holds an adapter beside the weights, which is not applied (transformers applies it): merge it with `trireme "
      "adapter merge`, or move it away",
      base.string());
}

void check_base_tensors(const Adapter& adapter, const WeightSource& base) {
  for (const auto& [name, tensor] : adapter.base) {
    const at::Tensor value = read_tensor(base, name);
    const at::Tensor theirs = at::from_blob(const_cast<float*>(tensor.values.data()), tensor.shape, at::kFloat);
    if (value.sizes() != theirs.sizes() ||
        !at::equal(value.to(to_scalar_type(adapter.base_type)).to(at::kFloat), theirs))
      throw ModelError(
          fmt::format("the adapter has {} of its base, as peft puts it beside an adapter of this module, and the "
                      "model's is another: "
                      "take the base that the adapter was trained on (with as many rows: trireme model resize-vocab)",
                      name));
  }
}

namespace {

/// ModelError where the adapter's configuration gives modules of the model an adapter that its file does not have.
void check_whole(const Adapter& adapter, const DecoderModel& model) {
  const LoraOptions& lora = adapter.config.lora;
  const TensorNames& names = family_of(model.config()).names;
  std::vector<std::string> targeted, missing;
  for (int64_t block = 0; block < model.config().num_hidden_layers; ++block)
    for (const std::string& module : adaptable_modules(model.block())) targeted.push_back(names.block(block) + module);
  if (!lora.target_modules.all_linear()) targeted.push_back(names.embedding);
  for (const std::string& module : targeted)
    if (!adapter.modules.contains(module) && is_targeted(lora, module)) missing.push_back(module);
  if (missing.empty()) return;
  constexpr size_t kMost = 4;
  const size_t count = missing.size();
  missing.resize(std::min(count, kMost));
  throw ModelError(fmt::format(
      "adapter_model.safetensors has no tensors of {}{}, which adapter_config.json gives an adapter: the file is not "
      "whole, or of another base; where these modules have none, say so in target_modules, exclude_modules or "
      "layers_to_transform",
      join(missing, ", "), count > kMost ? fmt::format(" and {} more modules", count - kMost) : ""));
}

/// ModelError where modules of the adapter's blocks have other names than the model's, as those of another family.
void check_names(const Adapter& adapter, const DecoderConfig& config) {
  std::set<std::string> names;
  for (const std::string& module : adaptable_modules(decoder_block(config))) names.insert(last_part(module));
  const std::string all = join({names.begin(), names.end()}, ", ");
  for (const std::string& module : {family_of(config).names.embedding, family_of(config).names.head})
    names.insert(last_part(module));
  std::set<std::string> others;
  for (const auto& [module, pair] : adapter.modules)
    if (const std::string name = last_part(module); !names.contains(name)) others.insert(name);
  if (!others.empty())
    throw ModelError(fmt::format(
        "the adapter is of another architecture: it adapts {}{}, and the blocks of a {} have {}: take the base that it "
        "was trained on",
        fmt::join(others, ", "),
        adapter.config.base_model.empty() ? "" : fmt::format(" of {}", adapter.config.base_model), config.family, all));
}

}  // namespace

DecoderModel model_for_adapter(const DecoderConfig& config, const Adapter& adapter) {
  check_names(adapter, config);
  // The modules that are there decide.
  LoraOptions lora = adapter.config.lora;
  lora.target_modules = lora.exclude_modules = {};
  lora.layers_to_transform.clear();
  for (const auto& [module, pair] : adapter.modules) lora.target_modules.names.push_back(module);
  const auto unused = [&](const auto& entry) {
    return std::ranges::none_of(adapter.modules,
                                [&](const auto& module) { return key_matches(entry.first, module.first); });
  };
  std::erase_if(lora.rank_pattern, unused);
  std::erase_if(lora.alpha_pattern, unused);
  try {
    DecoderModel model(config, std::move(lora));
    check_whole(adapter, model);
    return model;
  } catch (const ConfigError& error) {
    throw ModelError(fmt::format("the adapter does not fit a {}: {}", config.family, error.what()));
  }
}

}  // namespace trireme
