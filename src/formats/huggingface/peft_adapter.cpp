#include "trireme/formats/huggingface/peft_adapter.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

constexpr const char* kPrefix = "base_model.model.";
constexpr const char* kRowsSuffix = ".token_adapter.trainable_tokens_delta";
constexpr const char* kBaseHash = "trireme_base_hash";
constexpr const char* kBaseLayer = ".base_layer";
constexpr const char* kRowsBase = ".token_adapter.base_layer";

/// The values as fp32. ModelError for one that is not finite.
std::vector<float> read_values(const SafetensorsFile& file, const std::string& name,
                               const SafetensorsFile::Entry& entry) {
  const int64_t count = element_count(entry.info.shape);
  std::vector<float> values(static_cast<size_t>(count));
  convert_floats(file.bytes(entry).data(), entry.info.dtype, values.data(), DType::kF32, count);
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
    throw ModelError(fmt::format("{} in {} holds a NaN or an infinity: take another copy of the adapter", name,
                                 file.path().string()));
  return values;
}

/// What a tensor of the file is, by the end of its name.
enum class Kind { kA, kB, kMagnitude, kRows, kWeight, kBias, kUnknown };
struct Suffix {
  const char* text;
  Kind kind;
  size_t dimensions;
  bool embedding = false;
};
constexpr Suffix kSuffixes[] = {{".lora_A.weight", Kind::kA, 2},
                                {".lora_B.weight", Kind::kB, 2},
                                {".lora_embedding_A", Kind::kA, 2, true},
                                {".lora_embedding_B", Kind::kB, 2, true},
                                {".lora_magnitude_vector", Kind::kMagnitude, 1},
                                {kRowsSuffix, Kind::kRows, 2},
                                {".weight", Kind::kWeight, 2},
                                {".bias", Kind::kBias, 1}};

/// Reads the tensors of one file into an adapter that has its configuration.
class TensorsReader {
 public:
  TensorsReader(const SafetensorsFile& file, Adapter& adapter) : file_(file), adapter_(adapter) {}
  /// Problems, in the order of the file.
  std::vector<std::string> read() {
    name_embedding();
    for (const auto& [name, entry] : file_.entries()) read_tensor(name, entry);
    check_complete();
    lay_rows();
    choose_tying();
    return std::move(problems_);
  }

 private:
  template <class... Args>
  void problem(fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  void read_tensor(const std::string& name, const SafetensorsFile::Entry& entry) {
    const auto suffix = std::ranges::find_if(kSuffixes, [&](const Suffix& one) { return name.ends_with(one.text); });
    if (!name.starts_with(kPrefix) || suffix == std::end(kSuffixes) || entry.info.shape.size() != suffix->dimensions ||
        !dtype_is_float(entry.info.dtype) || dtype_size(entry.info.dtype) < 2)
      return problem("tensor {} is none of LoRA's that this reader knows", name);
    const std::string_view prefix = kPrefix;
    const std::string module =
        name.substr(prefix.size(), name.size() - prefix.size() - std::string_view(suffix->text).size());
    switch (suffix->kind) {
      case Kind::kRows: return read_rows(name, module, entry);
      case Kind::kWeight: return read_weight(name, module, entry);
      case Kind::kBias: return read_bias(name, module, entry);
      default: break;
    }
    const LoraOptions& lora = adapter_.config.lora;
    const bool tied = lora.ensure_weight_tying &&
                      (module == "lm_head" || module.ends_with("embed_tokens") || module.ends_with("wte"));
    if (!is_targeted(lora, module) && !tied)
      problem(
          "tensor {}: target_modules, exclude_modules and layers_to_transform of adapter_config.json leave this "
          "module without an adapter",
          name);
    else if (!is_targeted(lora, module) && suffix->kind == Kind::kA)
      problem(
          "tensor {} is of an adapter that ensure_weight_tying puts on the embedding and the output matrix, which is "
          "not supported: train the adapter without them in target_modules, or with modules_to_save",
          name);
    AdapterPair& pair = adapter_.modules[module];
    const std::vector<int64_t>& shape = entry.info.shape;
    if (suffix->kind == Kind::kMagnitude) {
      if (!lora.use_dora) problem("tensor {} is of DoRA, and adapter_config.json says use_dora false", name);
      pair.magnitude = read_values(file_, name, entry);
      return;
    }
    const bool is_a = suffix->kind == Kind::kA;
    pair.embedding = suffix->embedding;
    pair.r = is_a ? shape[0] : shape[1];
    (is_a ? pair.in : pair.out) = is_a ? shape[1] : shape[0];
    (is_a ? pair.a : pair.b) = read_values(file_, name, entry);
    if (const int64_t r = strength_of(lora, module).r; pair.r != r)
      problem("tensor {} has shape [{}, {}], adapter_config.json says r = {}", name, shape[0], shape[1], r);
  }

  /// A list in adapter_config.json means the embedding, whatever the model calls it: that of the file's rows.
  void name_embedding() {
    auto list = adapter_.config.token_indices.extract("");
    if (list.empty()) return;
    const auto of_gpt2 = [](const auto& entry) {
      return entry.first.starts_with(kPrefix + std::string("transformer.wte."));
    };
    list.key() = std::ranges::any_of(file_.entries(), of_gpt2) ? "transformer.wte" : "model.embed_tokens";
    adapter_.config.token_indices.insert(std::move(list));
  }

  void read_rows(const std::string& name, const std::string& module, const SafetensorsFile::Entry& entry) {
    const auto& all = adapter_.config.token_indices;
    // peft names a tied output matrix by its embedding alone.
    const auto indices = module == "lm_head" && all.size() == 1 ? all.begin() : all.find(module);
    const size_t named = indices == all.end() ? 0 : indices->second.size();
    const int64_t columns = entry.info.shape[1];
    if (static_cast<int64_t>(named) != entry.info.shape[0] || named == 0)
      return problem("tensor {} has {} rows, trainable_token_indices names {}", name, entry.info.shape[0], named);
    const std::vector<float> values = read_values(file_, name, entry);
    TokenRows& rows = adapter_.token_rows[module];
    rows.columns = columns;
    std::map<int64_t, const float*> sorted;
    for (size_t i = 0; i < named; ++i) sorted[indices->second[i]] = values.data() + static_cast<int64_t>(i) * columns;
    for (const auto& [id, row] : sorted) {
      rows.ids.push_back(id);
      rows.values.insert(rows.values.end(), row, row + columns);
    }
  }

  /// A module of modules_to_save, or a whole matrix in front of which peft has put something else.
  void read_weight(const std::string& name, std::string module, const SafetensorsFile::Entry& entry) {
    const auto strip = [&](std::string_view end) {
      const bool there = module.ends_with(end);
      if (there) module.resize(module.size() - end.size());
      return there;
    };
    const bool copy = strip(".modules_to_save") || strip(".original_module"), of_rows = strip(kRowsBase),
               behind = strip(kBaseLayer);
    const LoraOptions& lora = adapter_.config.lora;
    // Where peft ties the other matrix to a saved one, it does not name it in modules_to_save.
    const bool saved = is_saved(lora, module) || (!behind && lora.ensure_weight_tying && !lora.modules_to_save.empty());
    if ((!module.ends_with("embed_tokens") && !module.ends_with("wte") && module != "lm_head") || (copy && !saved))
      return problem("tensor {} is a weight of another module than the embedding and the output matrix", name);
    if (copy) return;  // peft reads a saved module under its own name
    if (saved && !of_rows) {
      adapter_.saved[module + ".weight"] = {entry.info.shape, read_values(file_, name, entry)};
      return;
    }
    if (behind) {
      adapter_.base[module + ".weight"] = {entry.info.shape, read_values(file_, name, entry)};
      adapter_.base_type = entry.info.dtype;
      return;
    }
    TokenRows& rows = of_rows ? rows_base_[module] : adapter_.token_rows[module];
    if (!rows.ids.empty()) return problem("tensor {} and trained rows are of one module", name);
    for (int64_t id = 0; id < entry.info.shape[0]; ++id) rows.ids.push_back(id);
    rows.values = read_values(file_, name, entry);
    rows.columns = entry.info.shape[1];
  }

  void read_bias(const std::string& name, std::string module, const SafetensorsFile::Entry& entry) {
    if (adapter_.config.lora.bias == LoraOptions::Bias::kNone)
      return problem("tensor {} is a bias, and adapter_config.json says bias none", name);
    if (module.ends_with(kBaseLayer)) module.resize(module.size() - std::string_view(kBaseLayer).size());
    adapter_.saved[module + ".bias"] = {entry.info.shape, read_values(file_, name, entry)};
  }

  void check_complete() {
    const bool dora = adapter_.config.lora.use_dora;
    for (const auto& [module, pair] : adapter_.modules) {
      if (pair.in == 0 || pair.out == 0)
        problem("{} has {} but no lora_{}", module, pair.in == 0 ? pair.out == 0 ? "a magnitude" : "lora_B" : "lora_A",
                pair.in == 0 ? "A" : "B");
      else if (dora && static_cast<int64_t>(pair.magnitude.size()) != pair.out)
        problem("{} has a lora_magnitude_vector of {} values, not {}", module, pair.magnitude.size(), pair.out);
    }
    const auto& all = adapter_.config.token_indices;
    for (const auto& [module, ids] : all)
      // Of a tied output matrix with the embedding's indices peft writes nothing.
      if (!adapter_.token_rows.contains(module) &&
          (module != "lm_head" || std::ranges::none_of(all, [&, &ids = ids](const auto& one) {
             return one.first != "lm_head" && one.second == ids;
           })))
        problem("trainable_token_indices names {}, whose rows are not in the file", module);
    for (const std::string& name : adapter_.config.lora.modules_to_save)
      if (std::ranges::none_of(adapter_.saved, [&](const auto& one) {
            return one.first == name + ".weight" || one.first.ends_with("." + name + ".weight");
          }))
        problem("modules_to_save names {}, whose weight is not in the file", name);
    if (adapter_.modules.empty()) problem("it holds no LoRA matrices");
  }

  /// Trained rows in the matrix that they are of, which peft puts into the file where the vocabulary was resized.
  void lay_rows() {
    for (auto& [module, whole] : rows_base_) {
      TokenRows& rows = adapter_.token_rows[module];
      if (!rows.ids.empty() && (rows.columns != whole.columns || rows.ids.back() >= std::ssize(whole.ids))) {
        problem("the trained rows of {} do not fit its {}.weight", module, kRowsBase);
        continue;
      }
      for (size_t i = 0; i < rows.ids.size(); ++i)
        std::copy_n(rows.values.data() + static_cast<int64_t>(i) * rows.columns, rows.columns,
                    whole.values.data() + rows.ids[i] * rows.columns);
      rows = std::move(whole);
    }
  }

  /// peft (0.21) ties by the names embed_tokens and lm_head: to a saved wte only an lm_head that is in the file.
  void choose_tying() {
    if (adapter_.saved.contains("transformer.wte.weight") && !adapter_.saved.contains("lm_head.weight"))
      adapter_.config.lora.ensure_weight_tying = false;
  }

  const SafetensorsFile& file_;
  Adapter& adapter_;
  std::map<std::string, TokenRows> rows_base_;  // whole matrices behind trained rows
  std::vector<std::string> problems_;
};

}  // namespace

Adapter read_adapter(const std::filesystem::path& directory) {
  Adapter adapter;
  adapter.config = read_adapter_config(directory);
  const auto path = directory / "adapter_model.safetensors";
  if (!std::filesystem::exists(path))
    throw ModelError(fmt::format(
        "{} has no adapter_model.safetensors{}", directory.string(),
        std::filesystem::exists(directory / "adapter_model.bin")
            ? ": adapter_model.bin is a pickle and is never opened; save the adapter with safe_serialization=True"
            : ""));
  const SafetensorsFile file(path);
  if (const auto hash = file.metadata().find(kBaseHash); hash != file.metadata().end())
    adapter.base_hash = hash->second;
  std::vector<std::string> problems;
  try {
    problems = TensorsReader(file, adapter).read();
  } catch (const ConfigError& error) {  // of patterns
    problems.emplace_back(error.what());
  }
  if (!problems.empty()) {
    std::vector<std::string> shown(problems.begin(),
                                   problems.begin() + static_cast<long>(std::min<size_t>(5, problems.size())));
    throw ModelError(fmt::format("{}: {}{}", path.string(), join(shown, "; "),
                                 problems.size() > 5 ? fmt::format("; and {} more", problems.size() - 5) : ""));
  }
  return adapter;
}

void write_adapter(const std::filesystem::path& directory, const Adapter& adapter, DType dtype) {
  std::vector<std::pair<std::string, TensorInfo>> declared;
  std::vector<const std::vector<float>*> values;
  const auto declare = [&](const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& of) {
    const int64_t count = element_count(shape);
    TRIREME_CHECK(static_cast<int64_t>(of.size()) == count, name, " has ", of.size(), " values, not ", count);
    declared.emplace_back(kPrefix + name, TensorInfo{dtype, shape});
    values.push_back(&of);
  };
  for (const auto& [module, pair] : adapter.modules) {
    declare(module + (pair.embedding ? ".lora_embedding_A" : ".lora_A.weight"), {pair.r, pair.in}, pair.a);
    declare(module + (pair.embedding ? ".lora_embedding_B" : ".lora_B.weight"), {pair.out, pair.r}, pair.b);
    if (!pair.magnitude.empty()) declare(module + ".lora_magnitude_vector", {pair.out}, pair.magnitude);
  }
  for (const auto& [module, rows] : adapter.token_rows)
    declare(module + kRowsSuffix, {static_cast<int64_t>(rows.ids.size()), rows.columns}, rows.values);
  for (const auto& [name, tensor] : adapter.saved) {
    // peft has the bias of an adapted module in the module's base layer.
    const size_t last = name.rfind('.');
    const bool adapted = name.ends_with(".bias") && adapter.modules.contains(name.substr(0, last));
    declare(adapted ? name.substr(0, last) + kBaseLayer + name.substr(last) : name, tensor.shape, tensor.values);
  }
  std::map<std::string, std::string> metadata;
  if (!adapter.base_hash.empty()) metadata[kBaseHash] = adapter.base_hash;
  SafetensorsWriter writer(directory / "adapter_model.safetensors", declared, metadata);
  std::vector<std::byte> converted;
  for (const std::vector<float>* tensor : values) {
    converted.resize(tensor->size() * dtype_size(dtype));
    convert_floats(tensor->data(), DType::kF32, converted.data(), dtype, static_cast<int64_t>(tensor->size()));
    writer.append(converted.data(), converted.size());
  }
  AdapterConfig config = adapter.config;
  config.token_indices.clear();
  for (const auto& [module, rows] : adapter.token_rows) config.token_indices[module] = rows.ids;
  // Both have their space before one replaces an older adapter's. The configuration is the last: a directory that has
  // one is complete.
  AtomicFile description(directory / "adapter_config.json");
  description.write(adapter_config_json(config));
  writer.commit();
  description.commit();
}

}  // namespace trireme
