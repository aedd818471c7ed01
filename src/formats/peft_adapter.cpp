#include "trireme/formats/peft_adapter.h"

#include "json.h"
#include "trireme/base/file.h"
#include "trireme/base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme {

namespace {

using Json = nlohmann::json;
constexpr const char* kPrefix = "base_model.model.";

bool is_empty(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("none") ||
         ((value.is_object() || value.is_array()) && value.empty());
}

}  // namespace

AdapterConfig read_adapter_config(const std::filesystem::path& directory) {
  const auto path = directory / "adapter_config.json";
  if (!std::filesystem::exists(path))
    throw ModelError(fmt::format("{} is no PEFT directory: adapter_config.json is missing", directory.string()));
  const Json json = parse_json(read_text_file(path, ExitCode::kModel, 16 << 20), path.string(), ExitCode::kModel);
  std::vector<std::string> problems;
  if (!json.is_object()) throw ModelError(fmt::format("{} is not a JSON object", path.string()));
  if (const Json type = member(json, "peft_type"); type != Json("LORA"))
    problems.push_back(fmt::format("peft_type is {}, only LORA is supported", type.dump().substr(0, 80)));
  for (const char* key : {"use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "bias", "modules_to_save",
                          "layers_to_transform", "layer_replication", "fan_in_fan_out", "lora_bias", "use_qalora",
                          "target_parameters", "trainable_token_indices"})
    if (json.contains(key) && !is_empty(json[key]))
      problems.push_back(fmt::format("{}: {} is not supported", key, json[key].dump().substr(0, 80)));
  AdapterConfig config;
  if (const Json r = member(json, "r"); r.is_number_integer() && r.get<int64_t>() > 0 && r.get<int64_t>() <= 65536)
    config.r = r.get<int64_t>();
  else
    problems.push_back("r is missing, or no integer from 1 to 65536");
  if (json.contains("lora_alpha") && json["lora_alpha"].is_number())
    config.alpha = json["lora_alpha"].get<double>();
  else
    problems.push_back("lora_alpha is missing");
  if (json.contains("lora_dropout") && json["lora_dropout"].is_number())
    config.dropout = json["lora_dropout"].get<double>();
  if (json.contains("base_model_name_or_path") && json["base_model_name_or_path"].is_string())
    config.base_model = json["base_model_name_or_path"].get<std::string>();
  if (json.contains("target_modules") && json["target_modules"].is_array()) {
    for (const Json& name : json["target_modules"])
      if (name.is_string()) config.target_modules.push_back(name.get<std::string>());
    std::sort(config.target_modules.begin(), config.target_modules.end());
  } else {
    problems.push_back("target_modules is not a list of module names");
  }
  if (!problems.empty()) throw ModelError(fmt::format("{}: {}", path.string(), join(problems, "; ")));
  return config;
}

std::string adapter_config_json(const AdapterConfig& config) {
  std::vector<std::string> targets = config.target_modules;
  std::sort(targets.begin(), targets.end());
  const Json json = {{"alpha_pattern", Json::object()},
                     {"auto_mapping", nullptr},
                     {"base_model_name_or_path", config.base_model},
                     {"bias", "none"},
                     {"fan_in_fan_out", false},
                     {"inference_mode", true},
                     {"init_lora_weights", true},
                     {"layer_replication", nullptr},
                     {"layers_pattern", nullptr},
                     {"layers_to_transform", nullptr},
                     {"loftq_config", Json::object()},
                     {"lora_alpha", config.alpha == static_cast<double>(static_cast<int64_t>(config.alpha))
                                        ? Json(static_cast<int64_t>(config.alpha))
                                        : Json(config.alpha)},
                     {"lora_dropout", config.dropout},
                     {"megatron_config", nullptr},
                     {"megatron_core", "megatron.core"},
                     {"modules_to_save", nullptr},
                     {"peft_type", "LORA"},
                     {"r", config.r},
                     {"rank_pattern", Json::object()},
                     {"revision", nullptr},
                     {"target_modules", targets},
                     {"task_type", "CAUSAL_LM"},
                     {"use_dora", false},
                     {"use_rslora", false}};
  return json.dump(2) + "\n";
}

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
  std::vector<std::string> problems;
  for (const auto& [name, entry] : file.entries()) {
    const bool is_a = name.ends_with(".lora_A.weight"), is_b = name.ends_with(".lora_B.weight");
    if (!name.starts_with(kPrefix) || (!is_a && !is_b) || entry.info.shape.size() != 2 ||
        !dtype_is_float(entry.info.dtype) || dtype_size(entry.info.dtype) < 2) {
      problems.push_back(fmt::format("tensor {} is not a LoRA matrix that this reader knows", name));
      continue;
    }
    const size_t begin = std::char_traits<char>::length(kPrefix);
    const std::string module =
        name.substr(begin, name.size() - begin - std::char_traits<char>::length(".lora_A.weight"));
    AdapterPair& pair = adapter.modules[module];
    std::vector<float>& values = is_a ? pair.a : pair.b;
    const int64_t rows = entry.info.shape[0], columns = entry.info.shape[1];
    const int64_t rank = is_a ? rows : columns;
    if (rank != adapter.config.r)
      problems.push_back(fmt::format("tensor {} has shape [{}, {}], adapter_config.json says r = {}", name, rows,
                                     columns, adapter.config.r));
    pair.r = rank;
    (is_a ? pair.in : pair.out) = is_a ? columns : rows;
    values.resize(static_cast<size_t>(rows * columns));
    convert_floats(file.bytes(entry).data(), entry.info.dtype, values.data(), DType::kF32, rows * columns);
  }
  for (const auto& [module, pair] : adapter.modules)
    if (pair.in == 0 || pair.out == 0)
      problems.push_back(
          fmt::format("{} has lora_{} but no lora_{}", module, pair.in == 0 ? "B" : "A", pair.in == 0 ? "A" : "B"));
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
  SafetensorsWriter writer(directory / "adapter_model.safetensors", declared);
  std::vector<std::byte> converted;
  for (const auto& [module, pair] : adapter.modules) {
    for (const std::vector<float>* values : {&pair.a, &pair.b}) {
      const int64_t expected = values == &pair.a ? pair.r * pair.in : pair.out * pair.r;
      TRIREME_CHECK(static_cast<int64_t>(values->size()) == expected, module, " has ", values->size(), " values, not ",
                    expected);
      converted.resize(values->size() * dtype_size(dtype));
      convert_floats(values->data(), DType::kF32, converted.data(), dtype, expected);
      writer.append(converted.data(), converted.size());
    }
  }
  writer.commit();
  // The configuration last: a directory with it is complete.
  write_file_atomic(directory / "adapter_config.json", adapter_config_json(adapter.config));
}

}  // namespace trireme
