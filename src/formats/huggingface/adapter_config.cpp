// adapter_config.json of a LoRA adapter: the fields of peft 0.21's LoraConfig, and which values are supported.
#include "trireme/base/file.h"
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/peft_adapter.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

namespace trireme {

namespace {

using Json = nlohmann::json;
using Problems = std::vector<std::string>;

/// null, false, "none", {} and []: the field has no effect.
bool is_empty(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("none") ||
         ((value.is_object() || value.is_array()) && value.empty());
}

std::string shown(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80);
}

/// Checks a field's value: empty if it is supported, otherwise the reason why not.
using Check = std::function<std::string(const Json& value)>;

std::string anything(const Json&) { return ""; }
std::string nothing(const Json& value) { return is_empty(value) ? "" : "is not supported"; }

std::string check_init(const Json& value) {
  if (value.is_boolean() || value.is_null()) return "";
  std::string name = value.is_string() ? value.get<std::string>() : "";
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  // Affects only the values before training; the file contains the trained values.
  for (const char* harmless : {"gaussian", "eva", "orthogonal", "mica"})
    if (name == harmless) return "";
  if (name.starts_with("pissa") || name == "olora" || name == "corda" || name == "loftq" || name == "lora_ga")
    return "is not supported: it changes the base weights, so the adapter belongs to another base than the one it "
           "names; save it with peft's save_pretrained(path, path_initial_model_for_weight_conversion=...), which "
           "makes a plain adapter of it";
  return "is not supported";
}

std::string check_task(const Json& value) {
  return value.is_null() || value == Json("CAUSAL_LM") ? "" : "is not supported, only CAUSAL_LM is";
}

/// All fields of peft 0.21's LoraConfig except those that read_adapter_config() reads itself.
const std::map<std::string, Check>& known_fields() {
  static const std::map<std::string, Check> fields = {
      // No influence on what the adapter computes.
      {"auto_mapping", anything},
      {"base_model_name_or_path", anything},
      {"ensure_weight_tying", anything},
      {"fan_in_fan_out", anything},  // peft sets it from the kind of layer; A and B have one layout
      {"inference_mode", anything},
      {"megatron_core", anything},
      {"peft_version", anything},
      {"revision", anything},
      {"runtime_config", anything},
      // Used only by the initialisation that init_lora_weights names.
      {"corda_config", anything},
      {"eva_config", anything},
      {"loftq_config", anything},
      {"lora_ga_config", anything},
      {"qalora_group_size", anything},  // of use_qalora
      {"init_lora_weights", check_init},
      {"task_type", check_task},
      // They change the computation, or adapt other modules.
      {"alora_invocation_tokens", nothing},
      {"alpha_pattern", nothing},
      {"arrow_config", nothing},
      {"bias", nothing},
      {"kasa_config", nothing},
      {"layer_replication", nothing},
      {"layers_pattern", nothing},
      {"layers_to_transform", nothing},
      {"lora_bias", nothing},
      {"megatron_config", nothing},
      {"modules_to_save", nothing},
      {"monteclora_config", nothing},
      {"rank_pattern", nothing},
      {"target_parameters", nothing},
      {"use_bdlora", nothing},
      {"use_dora", nothing},
      {"use_qalora", nothing},
      {"use_rslora", nothing},
      {"velora_config", nothing},
  };
  return fields;
}

constexpr const char* kReadHere[] = {
    "peft_type", "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "trainable_token_indices"};

std::vector<std::string> names_of(const Json& list, const char* key, Problems& problems) {
  std::vector<std::string> names;
  for (const Json& name : list) {
    if (name.is_string())
      names.push_back(name.get<std::string>());
    else
      problems.push_back(fmt::format("{}: {} is not the name of a module", key, shown(name)));
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// A list refers to the input embedding; an object names the modules.
std::map<std::string, std::vector<int64_t>> token_indices(const Json& value, Problems& problems) {
  std::map<std::string, std::vector<int64_t>> indices;
  if (is_empty(value)) return indices;
  const Json object = value.is_array() ? Json{{"embed_tokens", value}} : value;
  const auto bad = [&](const Json& what) {
    problems.push_back(fmt::format("trainable_token_indices: {} is not supported", shown(what)));
  };
  if (!object.is_object()) return bad(value), indices;
  for (const auto& [name, list] : object.items()) {
    const std::string module = name == "embed_tokens" ? "model.embed_tokens" : name == "wte" ? "transformer.wte" : name;
    if ((module != "model.embed_tokens" && module != "transformer.wte" && module != "lm_head") || !list.is_array() ||
        list.empty()) {
      bad({{name, list}});
      continue;
    }
    std::vector<int64_t>& ids = indices[module];
    for (const Json& id : list) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX ||
          (!ids.empty() && ids.back() >= id.get<int64_t>())) {
        problems.push_back(fmt::format("trainable_token_indices.{}: {}, expected a larger id", name, shown(id)));
        break;
      }
      ids.push_back(id.get<int64_t>());
    }
  }
  return indices;
}

}  // namespace

AdapterConfig read_adapter_config(const std::filesystem::path& directory) {
  const auto path = directory / "adapter_config.json";
  if (!std::filesystem::exists(path))
    throw ModelError(fmt::format("{} is not a PEFT directory: adapter_config.json is missing", directory.string()));
  const Json json = read_json_object(path);
  Problems problems;
  if (const Json type = member(json, "peft_type"); type != Json("LORA"))
    problems.push_back(fmt::format("peft_type is {}, only LORA is supported", shown(type)));
  for (const auto& [key, value] : json.items()) {
    if (std::find(std::begin(kReadHere), std::end(kReadHere), key) != std::end(kReadHere)) continue;
    const auto known = known_fields().find(key);
    if (known == known_fields().end()) {
      if (!is_empty(value))
        problems.push_back(fmt::format("{}: {} is a field that this version does not know", key, shown(value)));
    } else if (const std::string why = known->second(value); !why.empty()) {
      problems.push_back(fmt::format("{}: {} {}", key, shown(value), why));
    }
  }
  AdapterConfig config;
  if (const Json r = member(json, "r"); r.is_number_integer() && r.get<int64_t>() > 0 && r.get<int64_t>() <= 65536)
    config.r = r.get<int64_t>();
  else
    problems.push_back("r is missing or not an integer from 1 to 65536");
  if (const Json alpha = member(json, "lora_alpha"); alpha.is_number())
    config.alpha = alpha.get<double>();
  else
    problems.push_back("lora_alpha is missing or not a number");
  if (const Json dropout = member(json, "lora_dropout"); dropout.is_number())
    config.dropout = dropout.get<double>();
  else if (!dropout.is_null())
    problems.push_back(fmt::format("lora_dropout is {}, expected a number", shown(dropout)));
  if (const Json base = member(json, "base_model_name_or_path"); base.is_string())
    config.base_model = base.get<std::string>();
  if (const Json targets = member(json, "target_modules"); targets.is_array())
    config.target_modules = names_of(targets, "target_modules", problems);
  else
    problems.push_back(fmt::format(
        "target_modules is {}: patterns are not supported, write the names of the modules as a list", shown(targets)));
  if (const Json excluded = member(json, "exclude_modules"); excluded.is_array())
    config.exclude_modules = names_of(excluded, "exclude_modules", problems);
  else if (!is_empty(excluded))
    problems.push_back(fmt::format("exclude_modules is {}: patterns are not supported, write a list", shown(excluded)));
  config.token_indices = token_indices(member(json, "trainable_token_indices"), problems);
  if (!problems.empty()) throw ModelError(fmt::format("{}: {}", path.string(), join(problems, "; ")));
  return config;
}

bool is_targeted(const AdapterConfig& config, const std::string& module) {
  const auto named = [&](const std::vector<std::string>& names) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return module == name || module.ends_with("." + name); });
  };
  return named(config.target_modules) && !named(config.exclude_modules);
}

std::string adapter_config_json(const AdapterConfig& config) {
  std::vector<std::string> targets = config.target_modules;
  std::sort(targets.begin(), targets.end());
  Json json = {{"alpha_pattern", Json::object()},
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
  // Older versions of peft do not have these two fields: they are written only if they are not empty.
  if (!config.exclude_modules.empty()) json["exclude_modules"] = config.exclude_modules;
  for (const auto& [module, ids] : config.token_indices)
    json["trainable_token_indices"][module.substr(module.rfind('.') + 1)] = ids;
  return json.dump(2) + "\n";
}

}  // namespace trireme
