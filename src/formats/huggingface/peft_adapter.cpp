#include "trireme/formats/huggingface/peft_adapter.h"

#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

constexpr const char* kPrefix = "base_model.model.";
constexpr const char* kRows = ".token_adapter.trainable_tokens_delta";
constexpr const char* kBaseHash = "trireme_base_hash";

/// The matrix as fp32. ModelError for a value that is not finite.
std::vector<float> read_matrix(const SafetensorsFile& file, const std::string& name,
                               const SafetensorsFile::Entry& entry) {
  const int64_t count = entry.info.shape[0] * entry.info.shape[1];
  std::vector<float> values(static_cast<size_t>(count));
  convert_floats(file.bytes(entry).data(), entry.info.dtype, values.data(), DType::kF32, count);
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
    throw ModelError(fmt::format("{} in {} holds a NaN or an infinity: take another copy of the adapter", name,
                                 file.path().string()));
  return values;
}

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
  for (const auto& [name, entry] : file.entries()) {
    const bool is_a = name.ends_with(".lora_A.weight"), is_b = name.ends_with(".lora_B.weight"),
               is_rows = name.ends_with(kRows);
    if (!name.starts_with(kPrefix) || (!is_a && !is_b && !is_rows) || entry.info.shape.size() != 2 ||
        !dtype_is_float(entry.info.dtype) || dtype_size(entry.info.dtype) < 2) {
      problems.push_back(fmt::format("tensor {} is not a LoRA matrix that this reader knows", name));
      continue;
    }
    const size_t begin = std::char_traits<char>::length(kPrefix);
    const size_t suffix = std::char_traits<char>::length(is_rows ? kRows : ".lora_A.weight");
    const std::string module = name.substr(begin, name.size() - begin - suffix);
    if (is_rows) {
      const auto indices = adapter.config.token_indices.find(module);
      if (indices == adapter.config.token_indices.end() ||
          static_cast<int64_t>(indices->second.size()) != entry.info.shape[0])
        problems.push_back(fmt::format("tensor {} has {} rows, trainable_token_indices names {}", name,
                                       entry.info.shape[0],
                                       indices == adapter.config.token_indices.end() ? 0 : indices->second.size()));
      else
        adapter.token_rows[module] = {indices->second, read_matrix(file, name, entry), entry.info.shape[1]};
      continue;
    }
    if (!is_targeted(adapter.config, module))
      problems.push_back(
          fmt::format("tensor {}: target_modules and exclude_modules of adapter_config.json leave "
                      "this module without an adapter",
                      name));
    AdapterPair& pair = adapter.modules[module];
    std::vector<float>& values = is_a ? pair.a : pair.b;
    const int64_t rows = entry.info.shape[0], columns = entry.info.shape[1];
    const int64_t rank = is_a ? rows : columns;
    if (rank != adapter.config.r)
      problems.push_back(fmt::format("tensor {} has shape [{}, {}], adapter_config.json says r = {}", name, rows,
                                     columns, adapter.config.r));
    pair.r = rank;
    (is_a ? pair.in : pair.out) = is_a ? columns : rows;
    values = read_matrix(file, name, entry);
  }
  for (const auto& [module, pair] : adapter.modules)
    if (pair.in == 0 || pair.out == 0)
      problems.push_back(
          fmt::format("{} has lora_{} but no lora_{}", module, pair.in == 0 ? "B" : "A", pair.in == 0 ? "A" : "B"));
  for (const auto& [module, ids] : adapter.config.token_indices)
    if (!adapter.token_rows.contains(module))
      problems.push_back(fmt::format("trainable_token_indices names {}, whose rows are not in the file", module));
  if (adapter.modules.empty()) problems.push_back("it holds no LoRA matrices");
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
  for (const auto& [module, pair] : adapter.modules) {
    declared.emplace_back(kPrefix + module + ".lora_A.weight", TensorInfo{dtype, {pair.r, pair.in}});
    declared.emplace_back(kPrefix + module + ".lora_B.weight", TensorInfo{dtype, {pair.out, pair.r}});
  }
  for (const auto& [module, rows] : adapter.token_rows)
    declared.emplace_back(kPrefix + module + kRows,
                          TensorInfo{dtype, {static_cast<int64_t>(rows.ids.size()), rows.columns}});
  std::map<std::string, std::string> metadata;
  if (!adapter.base_hash.empty()) metadata[kBaseHash] = adapter.base_hash;
  SafetensorsWriter writer(directory / "adapter_model.safetensors", declared, metadata);
  std::vector<std::byte> converted;
  const auto append = [&](const std::vector<float>& values) {
    converted.resize(values.size() * dtype_size(dtype));
    convert_floats(values.data(), DType::kF32, converted.data(), dtype, static_cast<int64_t>(values.size()));
    writer.append(converted.data(), converted.size());
  };
  for (const auto& [module, pair] : adapter.modules) {
    for (const std::vector<float>* values : {&pair.a, &pair.b}) {
      const int64_t expected = values == &pair.a ? pair.r * pair.in : pair.out * pair.r;
      TRIREME_CHECK(static_cast<int64_t>(values->size()) == expected, module, " has ", values->size(), " values, not ",
                    expected);
      append(*values);
    }
  }
  AdapterConfig config = adapter.config;
  config.token_indices.clear();
  for (const auto& [module, rows] : adapter.token_rows) {
    append(rows.values);
    config.token_indices[module] = rows.ids;
  }
  writer.commit();
  // The configuration is written last: a directory that has one is complete.
  write_file_atomic(directory / "adapter_config.json", adapter_config_json(config));
}

}  // namespace trireme
