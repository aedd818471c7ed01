// adapter_config.json of a LoRA adapter: the fields of peft 0.21's LoraConfig, and which values are supported.
#include "trireme/base/text.h"
#include "trireme/formats/huggingface/peft_adapter.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

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
/// For the configuration of a variant, which an empty object chooses, too: with the variant's defaults.
std::string no_variant(const Json& value) { return value.is_object() ? "is not supported" : nothing(value); }

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

/// The lists of blocks of our families, which peft finds without it.
std::string check_layers_pattern(const Json& value) {
  for (const Json& name : value.is_array() ? value : Json::array({value}))
    if (!is_empty(name) && name != Json("layers") && name != Json("h") && name != Json("")) return "is not supported";
  return "";
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
      {"arrow_config", no_variant},
      {"kasa_config", no_variant},
      {"layer_replication", nothing},
      {"layers_pattern", check_layers_pattern},
      {"lora_bias", nothing},
      {"megatron_config", nothing},
      {"monteclora_config", no_variant},
      {"target_parameters", nothing},
      {"use_bdlora", no_variant},
      {"use_qalora", nothing},
      {"velora_config", no_variant},
  };
  return fields;
}

constexpr const char* kReadHere[] = {"peft_type",
                                     "r",
                                     "lora_alpha",
                                     "lora_dropout",
                                     "target_modules",
                                     "exclude_modules",
                                     "layers_to_transform",
                                     "rank_pattern",
                                     "alpha_pattern",
                                     "use_rslora",
                                     "use_dora",
                                     "bias",
                                     "modules_to_save",
                                     "ensure_weight_tying",
                                     "trainable_token_indices"};

void check_pattern(const std::string& key, const std::string& pattern, Problems& problems) {
  if (const std::string problem = pattern_problem(pattern); !problem.empty())
    problems.push_back(fmt::format("{}: the pattern {} {}", key, shown(Json(pattern)), problem));
}

ModuleSelector selector_of(const Json& json, const char* key, Problems& problems) {
  ModuleSelector selector;
  const Json value = member(json, key);
  if (value.is_string()) {
    selector.pattern = value.get<std::string>();
    if (!selector.all_linear()) check_pattern(key, selector.pattern, problems);
  } else if (value.is_array()) {
    for (const Json& name : value) {
      if (name.is_string())
        selector.names.push_back(name.get<std::string>());
      else
        problems.push_back(fmt::format("{}: {} is not the name of a module", key, shown(name)));
    }
    std::sort(selector.names.begin(), selector.names.end());
  } else if (!is_empty(value)) {
    problems.push_back(fmt::format("{} is {}, expected names or a pattern", key, shown(value)));
  }
  return selector;
}

/// rank_pattern or alpha_pattern.
template <class Number>
void read_pattern(const Json& json, const char* key, std::vector<std::pair<std::string, Number>>& pattern,
                  Problems& problems) {
  const Json value = member(json, key);
  if (is_empty(value)) return;
  if (!value.is_object()) return problems.push_back(fmt::format("{} is {}, expected an object", key, shown(value)));
  for (const auto& entry : value.items()) {
    const std::string& name = entry.key();
    const Json& number = entry.value();
    check_pattern(key, name, problems);
    if (!number.is_number() || !(number.get<double>() > 0) || number.get<double>() > 65536 ||
        (std::is_integral_v<Number> && !number.is_number_integer()))
      problems.push_back(
          fmt::format("{}.{} is {}, expected {}", key, name, shown(number),
                      std::is_integral_v<Number> ? "an integer from 1 to 65536" : "a number above 0, up to 65536"));
    else
      pattern.emplace_back(name, number.get<Number>());
  }
}

void read_layers(const Json& json, LoraOptions& lora, Problems& problems) {
  const Json value = member(json, "layers_to_transform");
  if (is_empty(value)) return;
  for (const Json& layer : value.is_array() ? value : Json::array({value})) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() > INT32_MAX)
      problems.push_back(fmt::format("layers_to_transform: {}, expected the number of a layer", shown(layer)));
    else
      lora.layers_to_transform.push_back(layer.get<int64_t>());
  }
  if (!lora.target_modules.pattern.empty())
    problems.emplace_back("layers_to_transform goes with target_modules that are a list (peft refuses a pattern, too)");
}

void read_lora(const Json& json, LoraOptions& lora, Problems& problems) {
  if (const Json r = member(json, "r"); r.is_number_integer() && r.get<int64_t>() > 0 && r.get<int64_t>() <= 65536)
    lora.r = r.get<int64_t>();
  else
    problems.emplace_back("r is missing or not an integer from 1 to 65536");
  if (const Json alpha = member(json, "lora_alpha"); alpha.is_number() && std::abs(alpha.get<double>()) <= 65536)
    lora.alpha = alpha.get<double>();
  else
    problems.emplace_back("lora_alpha is missing or not a number up to 65536");
  lora.dropout = 0;
  if (const Json dropout = member(json, "lora_dropout"); dropout.is_number())
    lora.dropout = dropout.get<double>();
  else if (!dropout.is_null())
    problems.push_back(fmt::format("lora_dropout is {}, expected a number", shown(dropout)));
  lora.target_modules = selector_of(json, "target_modules", problems);
  if (lora.target_modules.empty()) problems.emplace_back("target_modules names no module");
  lora.exclude_modules = selector_of(json, "exclude_modules", problems);
  read_layers(json, lora, problems);
  read_pattern(json, "rank_pattern", lora.rank_pattern, problems);
  read_pattern(json, "alpha_pattern", lora.alpha_pattern, problems);
  const auto read_flag = [&](const char* key, bool& flag) {
    const Json value = member(json, key);
    if (value.is_boolean())
      flag = value.get<bool>();
    else if (!value.is_null())
      problems.push_back(fmt::format("{} is {}, expected true or false", key, shown(value)));
  };
  read_flag("use_rslora", lora.use_rslora);
  read_flag("use_dora", lora.use_dora);
  read_flag("ensure_weight_tying", lora.ensure_weight_tying);
  const Json bias = member(json, "bias");
  if (bias == Json("all") || bias == Json("lora_only"))
    lora.bias = bias == Json("all") ? LoraOptions::Bias::kAll : LoraOptions::Bias::kLoraOnly;
  else if (!is_empty(bias))
    problems.push_back(fmt::format("bias is {}, expected none, all or lora_only", shown(bias)));
  lora.modules_to_save = selector_of(json, "modules_to_save", problems).names;
  if (member(json, "modules_to_save").is_string()) problems.emplace_back("modules_to_save is no list");
  // peft adds the whole path where it ties the output matrix.
  for (const std::string& name : lora.modules_to_save)
    if (const std::string last = name.substr(name.rfind('.') + 1);
        last != "embed_tokens" && last != "wte" && last != "lm_head")
      problems.push_back(fmt::format("modules_to_save has {}, only the embedding and the output matrix are supported",
                                     shown(Json(name))));
  const std::vector<std::string> named = lora.modules_to_save;
  std::erase_if(lora.modules_to_save, [&](const std::string& name) {
    const size_t last = name.rfind('.') + 1;
    return last > 0 && std::ranges::find(named, name.substr(last)) != named.end();
  });
}

/// A list refers to the input embedding, here under an empty name; an object names the modules.
std::map<std::string, std::vector<int64_t>> token_indices(const Json& value, Problems& problems) {
  std::map<std::string, std::vector<int64_t>> indices;
  if (is_empty(value)) return indices;
  const Json object = value.is_array() ? Json{{"", value}} : value;
  const auto bad = [&](const Json& what) {
    problems.push_back(fmt::format("trainable_token_indices: {} is not supported", shown(what)));
  };
  if (!object.is_object()) return bad(value), indices;
  for (const auto& [name, list] : object.items()) {
    const std::string module = name == "embed_tokens" ? "model.embed_tokens" : name == "wte" ? "transformer.wte" : name;
    if ((!(module.empty() && value.is_array()) && module != "model.embed_tokens" && module != "transformer.wte" &&
         module != "lm_head") ||
        !list.is_array() || list.empty()) {
      bad({{name, list}});
      continue;
    }
    std::vector<int64_t>& ids = indices[module];
    std::set<int64_t> seen;
    for (const Json& id : list) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX || !seen.insert(id.get<int64_t>()).second) {
        problems.push_back(fmt::format("trainable_token_indices.{}: {}, expected another id", name, shown(id)));
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
    throw ModelError(fmt::format("{} is not a PEFT directory: adapter_config.json is missing{}", directory.string(),
                                 std::filesystem::exists(directory / "adapter" / path.filename())
                                     ? fmt::format("; {} is one", (directory / "adapter").string())
                                     : ""));
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
  read_lora(json, config.lora, problems);
  if (const Json base = member(json, "base_model_name_or_path"); base.is_string())
    config.base_model = base.get<std::string>();
  config.token_indices = token_indices(member(json, "trainable_token_indices"), problems);
  if (!problems.empty()) throw ModelError(fmt::format("{}: {}", path.string(), join(problems, "; ")));
  return config;
}

namespace {

Json number_json(double value) {
  const auto whole = static_cast<int64_t>(value);
  return value == static_cast<double>(whole) ? Json(whole) : Json(value);
}

Json selector_json(const ModuleSelector& selector) {
  if (!selector.pattern.empty()) return selector.pattern;
  std::vector<std::string> names = selector.names;
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string adapter_config_json(const AdapterConfig& config) {
  const LoraOptions& lora = config.lora;
  const char* bias = lora.bias == LoraOptions::Bias::kAll        ? "all"
                     : lora.bias == LoraOptions::Bias::kLoraOnly ? "lora_only"
                                                                 : "none";
  Json json = {{"alpha_pattern", Json::object()},
               {"auto_mapping", nullptr},
               {"base_model_name_or_path", config.base_model},
               {"bias", bias},
               {"fan_in_fan_out", false},
               {"inference_mode", true},
               {"init_lora_weights", true},
               {"layer_replication", nullptr},
               {"layers_pattern", nullptr},
               {"layers_to_transform", lora.layers_to_transform.empty() ? Json() : Json(lora.layers_to_transform)},
               {"loftq_config", Json::object()},
               {"lora_alpha", number_json(lora.alpha)},
               {"lora_dropout", lora.dropout},
               {"megatron_config", nullptr},
               {"megatron_core", "megatron.core"},
               {"modules_to_save", lora.modules_to_save.empty() ? Json() : Json(lora.modules_to_save)},
               {"peft_type", "LORA"},
               {"r", lora.r},
               {"rank_pattern", Json::object()},
               {"revision", nullptr},
               {"target_modules", selector_json(lora.target_modules)},
               {"task_type", "CAUSAL_LM"},
               {"use_dora", lora.use_dora},
               {"use_rslora", lora.use_rslora}};
  for (const auto& [key, r] : lora.rank_pattern) json["rank_pattern"][key] = r;
  for (const auto& [key, alpha] : lora.alpha_pattern) json["alpha_pattern"][key] = number_json(alpha);
  // Older versions of peft do not have these fields: they are written only if they are not empty.
  if (lora.ensure_weight_tying) json["ensure_weight_tying"] = true;
  if (!lora.exclude_modules.empty()) json["exclude_modules"] = selector_json(lora.exclude_modules);
  for (const auto& [module, ids] : config.token_indices)
    json["trainable_token_indices"][module.substr(module.rfind('.') + 1)] = ids;
  return json.dump(2) + "\n";
}

}  // namespace trireme
