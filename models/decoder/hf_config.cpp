#include "models/decoder/hf_config.h"

#include "trireme/base/dropout_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace trireme {

namespace {

using Json = nlohmann::json;

using Scaling = RopeFrequencies::Scaling;
constexpr std::pair<Scaling, const char*> kScalings[] = {
    {Scaling::kNone, "default"}, {Scaling::kLinear, "linear"},   {Scaling::kLlama3, "llama3"},
    {Scaling::kYarn, "yarn"},    {Scaling::kDynamic, "dynamic"}, {Scaling::kLongrope, "longrope"}};

/// Reads one set of rotary parameters, `key` of config.json, into `rope`.
class RopeSetReader {
 public:
  RopeSetReader(ConfigReader& reader, const Json& set, std::string key, const DecoderConfig& config,
                const RopeWords& words)
      : reader_(reader), set_(set), key_(std::move(key)), config_(config), words_(words) {}

  void read(RopeFrequencies& rope) {
    rope.theta = reader_.number(set_, "rope_theta", rope.theta);
    if (set_.contains("partial_rotary_factor") && !words_.partial && set_["partial_rotary_factor"] != Json(1.0))
      reader_.lacking("partial_rotary_factor", set_["partial_rotary_factor"]);
    if (words_.partial) rope.part = reader_.number(set_, "partial_rotary_factor", rope.part);
    const Json type = set_.contains("rope_type") ? set_["rope_type"]
                      : set_.contains("type")    ? set_["type"]
                                                 : Json("default");
    if (!read_type(type, rope)) return reader_.lacking(fmt::format("{}.rope_type", key_), type);
    if (rope.scaling == Scaling::kNone) return;
    read_factor(rope);
    if (rope.scaling == Scaling::kDynamic) rope.original_max_position = config_.max_position_embeddings;
    if (rope.scaling == Scaling::kLlama3) read_llama3(rope);
    if (rope.scaling == Scaling::kYarn) read_yarn(rope);
    if (rope.scaling == Scaling::kLongrope) {
      rope.short_factor = numbers("short_factor");
      rope.long_factor = numbers("long_factor");
    }
    if ((rope.scaling == Scaling::kYarn || rope.scaling == Scaling::kLongrope) && holds("attention_factor"))
      rope.attention_factor = reader_.number(set_, "attention_factor", 1);
  }

 private:
  bool holds(const char* name) const { return set_.contains(name) && !set_[name].is_null(); }

  bool read_type(const Json& type, RopeFrequencies& rope) const {
    if (words_.longrope_only && (type == "su" || type == "yarn")) {
      rope.scaling = Scaling::kLongrope;
      return true;
    }
    for (const auto& [scaling, name] : kScalings) {
      if (type != name) continue;
      rope.scaling = scaling;
      return !words_.longrope_only || scaling == Scaling::kNone || scaling == Scaling::kLongrope;
    }
    return false;
  }

  /// factor and original_max_position_embeddings. A value of the latter beside the set overrides the one in it.
  void read_factor(RopeFrequencies& rope) {
    const bool by_ratio =
        rope.scaling == Scaling::kLongrope || (rope.scaling == Scaling::kYarn && set_.contains("factor"));
    if (!by_ratio && !set_.contains("factor")) reader_.problem(fmt::format("{}.factor is missing", key_));
    rope.factor = reader_.number(set_, "factor", 0.0);
    if (rope.scaling == Scaling::kLinear || rope.scaling == Scaling::kDynamic) return;
    constexpr const char* kOriginal = "original_max_position_embeddings";
    const Json outer = member(reader_.json(), kOriginal);
    if (rope.scaling == Scaling::kLlama3 && !set_.contains(kOriginal) && outer.is_null())
      reader_.problem(fmt::format("{}.{} is missing", key_, kOriginal));
    const double absent = static_cast<double>(config_.max_position_embeddings);
    double original =
        outer.is_null() ? reader_.number(set_, kOriginal, absent) : reader_.number(reader_.json(), kOriginal, absent);
    if (outer.is_null() && words_.original > 0) original = static_cast<double>(words_.original);
    if (original < 1 || original > static_cast<double>(ConfigReader::kMaxInteger) || original != std::floor(original))
      return reader_.problem(fmt::format("{}.{} is {}, expected an integer from 1 to {}", key_, kOriginal, original,
                                         ConfigReader::kMaxInteger));
    rope.original_max_position = static_cast<int64_t>(original);
    rope.factor_stated = rope.factor > 0;
    if (!rope.factor_stated) rope.factor = absent / original;
  }

  void read_llama3(RopeFrequencies& rope) {
    for (const char* field : {"low_freq_factor", "high_freq_factor"})
      if (!set_.contains(field)) reader_.problem(fmt::format("{}.{} is missing", key_, field));
    rope.low_freq_factor = reader_.number(set_, "low_freq_factor", 1.0);
    rope.high_freq_factor = reader_.number(set_, "high_freq_factor", 4.0);
    if (rope.high_freq_factor <= rope.low_freq_factor)
      reader_.problem(fmt::format("{}.high_freq_factor must be greater than low_freq_factor", key_));
  }

  void read_yarn(RopeFrequencies& rope) {
    rope.beta_fast = reader_.number(set_, "beta_fast", rope.beta_fast);
    rope.beta_slow = reader_.number(set_, "beta_slow", rope.beta_slow);
    rope.mscale = reader_.number(set_, "mscale", 0);
    rope.mscale_all_dim = reader_.number(set_, "mscale_all_dim", 0);
    if (!holds("truncate")) return;
    if (!set_["truncate"].is_boolean())
      return reader_.problem(fmt::format("{}.truncate is {}, expected true or false", key_, set_["truncate"].dump()));
    rope.truncate = set_["truncate"].get<bool>();
  }

  std::vector<double> numbers(const char* name) {
    constexpr size_t kMost = 4096;
    const Json list = member(set_, name);
    std::vector<double> values;
    if (list.is_array() && list.size() <= kMost)
      for (const Json& value : list)
        if (value.is_number() && value.get<double>() > 0 && std::isfinite(value.get<double>()))
          values.push_back(value.get<double>());
    if (!list.is_array() || values.size() != list.size())
      reader_.problem(fmt::format("{}.{} must be a list of positive numbers", key_, name));
    return values;
  }

  ConfigReader& reader_;
  const Json& set_;
  std::string key_;
  const DecoderConfig& config_;
  const RopeWords& words_;
};

/// Rotary parameters of blocks with and without a window, in one object each; transformers 4 has rope_theta,
/// rope_local_base_freq and rope_scaling, which is that of the blocks without.
void read_ropes_by_window(ConfigReader& reader, DecoderConfig& config, const RopeWords& words) {
  const Json& json = reader.json();
  config.window_rope->theta = reader.number("rope_local_base_freq", config.window_rope->theta);
  Json sets = member(json, "rope_parameters");
  if (!sets.is_null() && !sets.is_object()) return reader.problem("rope_parameters is not an object");
  Json full = Json::object();
  for (const auto& [name, set] : sets.items()) {
    if (set.is_null()) continue;
    if ((name != "full_attention" && name != "sliding_attention") || !set.is_object()) {
      reader.lacking("rope_parameters." + name, set);
      continue;
    }
    if (name == "full_attention")
      full = set;
    else
      RopeSetReader(reader, set, "rope_parameters." + name, config, words).read(*config.window_rope);
  }
  if (reader.has("rope_scaling")) {
    if (!json["rope_scaling"].is_object()) return reader.problem("rope_scaling is not an object");
    full.update(json["rope_scaling"]);
  }
  RopeSetReader(reader, full, "rope_parameters.full_attention", config, words).read(config.rope);
}

/// rope_scaling, if it exists and is not empty, replaces rope_parameters; rope_theta beside them counts where neither
/// holds one.
void read_rope(ConfigReader& reader, DecoderConfig& config, const RopeWords& words) {
  const Json& json = reader.json();
  config.rope.theta = reader.number("rope_theta", config.rope.theta);
  if (words.partial) config.rope.part = reader.number("partial_rotary_factor", config.rope.part);
  if (config.window_rope) return read_ropes_by_window(reader, config, words);
  // transformers 5 writes one object, rope_parameters; transformers 4 rope_theta beside rope_scaling. If both exist,
  // transformers reads only rope_scaling, unless it is empty.
  const auto holds = [&](const char* name) { return reader.has(name) && !json[name].empty(); };
  const char* key = holds("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!holds(key)) return;
  const Json& rope = json[key];
  if (!rope.is_object()) return reader.problem(fmt::format("{} is not an object", key));
  for (const auto& [name, value] : rope.items())
    if (value.is_object()) reader.lacking(fmt::format("{}.{}", key, name), value);  // one set for each kind of layer
  RopeSetReader(reader, rope, key, config, words).read(config.rope);
}

/// transformers 4's field beside rope_theta: null, or the parameters without the base.
Json rope_scaling_json(const DecoderConfig& config) {
  if (config.rope.scaling == Scaling::kNone) return Json();
  Json scaling = rope_set_json(config.rope);
  scaling.erase("rope_theta");
  if (config.rope.scaling == Scaling::kLinear || config.rope.scaling == Scaling::kDynamic)
    scaling["type"] = scaling["rope_type"];
  return scaling;
}

/// As transformers writes eos_token_id: null, one id, or a list.
Json id_or_list(const std::vector<int64_t>& ids) {
  if (ids.empty()) return Json();
  return ids.size() == 1 ? Json(ids[0]) : Json(ids);
}

std::optional<int64_t> required_or(int64_t value) { return value > 0 ? std::optional(value) : std::nullopt; }

}  // namespace

const char* rope_type(RopeFrequencies::Scaling scaling) {
  for (const auto& [known, name] : kScalings)
    if (known == scaling) return name;
  return "";
}

void read_common_fields(ConfigReader& reader, DecoderConfig& config) {
  const Json& json = reader.json();
  if (reader.has("quantization_config")) reader.lacking("quantization_config", json["quantization_config"]);
  config.bos_token_id = reader.token_id("bos_token_id", config.bos_token_id);
  config.eos_token_ids = reader.token_ids("eos_token_id", config.eos_token_ids);
  config.pad_token_id = reader.token_id("pad_token_id", config.pad_token_id, /*lowest=*/-1);
  for (const char* key : {"torch_dtype", "dtype"})
    if (reader.has(key) && json[key].is_string()) config.dtype = json[key].get<std::string>();
}

nlohmann::json common_fields_json(const DecoderConfig& config) {
  const Family& family = family_of(config);
  return {{"architectures", {family.architecture}},
          {"model_type", family.model_type},
          {"vocab_size", config.vocab_size},
          {"initializer_range", config.initializer_range},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"bos_token_id", or_null(config.bos_token_id)},
          {"eos_token_id", id_or_list(config.eos_token_ids)},
          {"pad_token_id", or_null(config.pad_token_id)},
          {"torch_dtype", config.dtype},
          {"use_cache", true}};
}

Json rope_set_json(const RopeFrequencies& rope) {
  Json json = {{"rope_type", rope_type(rope.scaling)}, {"rope_theta", rope.theta}};
  if (rope.scaling == Scaling::kNone) return json;
  const bool longrope = rope.scaling == Scaling::kLongrope;
  if (rope.factor_stated || !longrope) json["factor"] = rope.factor_stated ? Json(rope.factor) : Json();
  if (rope.scaling == Scaling::kLinear || rope.scaling == Scaling::kDynamic) return json;
  json["original_max_position_embeddings"] = rope.original_max_position;
  if (rope.scaling == Scaling::kLlama3)
    json.update({{"low_freq_factor", rope.low_freq_factor}, {"high_freq_factor", rope.high_freq_factor}});
  if (longrope) json.update({{"short_factor", rope.short_factor}, {"long_factor", rope.long_factor}});
  if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
  const RopeFrequencies absent;
  for (const auto& [name, member] : {std::pair("beta_fast", &RopeFrequencies::beta_fast),
                                     {"beta_slow", &RopeFrequencies::beta_slow},
                                     {"mscale", &RopeFrequencies::mscale},
                                     {"mscale_all_dim", &RopeFrequencies::mscale_all_dim}})
    if (rope.*member != absent.*member) json[name] = rope.*member;
  if (!rope.truncate) json["truncate"] = false;
  return json;
}

std::vector<bool> read_layer_types(ConfigReader& reader, int64_t layers) {
  std::vector<bool> windowed;
  if (!reader.has("layer_types")) return windowed;
  const Json& types = reader.json()["layer_types"];
  const bool known = types.is_array() && std::ranges::all_of(types, [](const Json& type) {
                       return type == "sliding_attention" || type == "full_attention";
                     });
  if (!known || static_cast<int64_t>(types.size()) != layers) {
    reader.lacking("layer_types", types);
    return windowed;
  }
  for (const Json& type : types) windowed.push_back(type == "sliding_attention");
  return windowed;
}

Json layer_types_json(const DecoderConfig& config) {
  Json types = Json::array();
  for (int64_t block = 0; block < config.num_hidden_layers; ++block)
    types.push_back(config.has_window(block) ? "sliding_attention" : "full_attention");
  return types;
}

DecoderConfig read_llama_fields(ConfigReader& reader, const DecoderConfig& defaults, const RopeWords& words) {
  if (defaults.activation == Activation::kSwiglu) reader.only("hidden_act", {"\"silu\"", "\"swish\""});
  if (!words.partial) reader.only("partial_rotary_factor", {"1", "1.0"});
  DecoderConfig config = defaults;
  config.hidden_size = reader.integer("hidden_size", required_or(defaults.hidden_size));
  config.intermediate_size = reader.integer("intermediate_size", required_or(defaults.intermediate_size));
  config.num_hidden_layers = reader.integer("num_hidden_layers", required_or(defaults.num_hidden_layers));
  config.num_attention_heads = reader.integer("num_attention_heads", required_or(defaults.num_attention_heads));
  // null says as many as heads, in every family; an absent field has the family's default.
  const bool stated = reader.json().contains("num_key_value_heads");
  config.num_key_value_heads =
      reader.integer("num_key_value_heads", stated || defaults.num_key_value_heads == 0 ? config.num_attention_heads
                                                                                        : defaults.num_key_value_heads);
  config.vocab_size = reader.integer("vocab_size", required_or(defaults.vocab_size));
  config.max_position_embeddings = reader.integer("max_position_embeddings", defaults.max_position_embeddings);
  const int64_t head_dim = defaults.head_dim > 0 ? defaults.head_dim : config.hidden_size / config.num_attention_heads;
  config.head_dim = reader.integer("head_dim", head_dim);
  if (!reader.has("head_dim") && defaults.head_dim == 0 && config.hidden_size % config.num_attention_heads != 0)
    reader.problem(fmt::format("hidden_size {} is no multiple of num_attention_heads {}", config.hidden_size,
                               config.num_attention_heads));
  config.norm_eps = reader.number("rms_norm_eps", defaults.norm_eps);
  config.initializer_range = reader.number("initializer_range", defaults.initializer_range);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", defaults.tie_word_embeddings);
  config.attention_dropout = reader.probability("attention_dropout", 0, kAttentionDropoutSteps);
  read_rope(reader, config, words);
  read_common_fields(reader, config);
  return config;
}

nlohmann::json llama_fields_json(const DecoderConfig& config) {
  Json json = common_fields_json(config);
  json.update({{"hidden_size", config.hidden_size},
               {"intermediate_size", config.intermediate_size},
               {"num_hidden_layers", config.num_hidden_layers},
               {"num_attention_heads", config.num_attention_heads},
               {"num_key_value_heads", config.num_key_value_heads},
               {"head_dim", config.head_dim},
               {"max_position_embeddings", config.max_position_embeddings},
               {"rms_norm_eps", config.norm_eps},
               {"hidden_act", "silu"},
               {"attention_dropout", config.attention_dropout},
               {"rope_theta", config.rope.theta},
               {"rope_scaling", rope_scaling_json(config)},
               {"rope_parameters", rope_set_json(config.rope)}});
  return json;
}

DecoderConfig read_qwen_fields(ConfigReader& reader, int64_t head_dim) {
  DecoderConfig defaults;
  defaults.num_key_value_heads = 32;
  defaults.head_dim = head_dim;
  defaults.max_position_embeddings = 32768;
  defaults.bos_token_id = std::nullopt;
  defaults.eos_token_ids = {};
  DecoderConfig config = read_llama_fields(reader, defaults);
  const int64_t window = reader.integer("sliding_window", 4096);
  config.full_attention_layers = reader.integer("max_window_layers", 28, /*lowest=*/0);
  if (reader.boolean("use_sliding_window", false)) config.sliding_window = window;
  std::vector<bool> windowed = read_layer_types(reader, config.num_hidden_layers);
  for (size_t block = 0; block < windowed.size(); ++block) {
    if (windowed[block] == config.has_window(static_cast<int64_t>(block))) continue;
    if (!config.sliding_window) reader.lacking("layer_types", reader.json()["layer_types"]);
    config.windowed = windowed;  // another choice than max_window_layers
    break;
  }
  return config;
}

Json qwen_fields_json(const DecoderConfig& config) {
  Json json = llama_fields_json(config);
  json.update({{"use_sliding_window", config.sliding_window.has_value()},
               {"sliding_window", or_null(config.sliding_window)},
               {"max_window_layers", config.full_attention_layers}});
  if (!config.windowed.empty()) json["layer_types"] = layer_types_json(config);
  return json;
}

DecoderConfig qwen_preset(const char* family, int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads,
                          int64_t kv_heads, bool tied) {
  DecoderConfig config = with_sizes({}, hidden, intermediate, layers, heads, kv_heads);
  config.family = family;
  config.full_attention_layers = layers;
  config.rope.theta = 1e6;
  config.tie_word_embeddings = tied;
  config.bos_token_id = 151643;
  config.dtype = "bfloat16";
  return config;
}

DecoderConfig with_sizes(DecoderConfig config, int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads,
                         int64_t kv_heads) {
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = hidden / heads;
  return config;
}

TensorNames llama_tensor_names() {
  return {.base = "model.",
          .embedding = "model.embed_tokens",
          .positions = "",
          .blocks = "model.layers.",
          .final_norm = "model.norm"};
}

BlockTable bare_block(const DecoderConfig& config) {
  BlockTable block;
  block.biases_last = true;
  block.heads = config.num_attention_heads;
  block.kv_heads = config.num_key_value_heads;
  block.head_dim = config.head_dim;
  block.rotary = config.positions == DecoderPositions::kRope;
  block.gated = is_gated(config.activation);
  block.norms_plus_one = config.norm == NormKind::kRmsPlusOne;
  block.attention_scale = config.attention_multiplier;
  block.branch_multiplier = config.residual_multiplier;
  if (!config.sliding_window && config.without_rope.empty()) return block;
  for (int64_t b = 0; b < config.num_hidden_layers; ++b) {
    BlockAttention& own = block.attention.emplace_back();
    if (config.has_window(b)) own = {*config.sliding_window, config.window_rope ? 1 : 0};
    if (!config.without_rope.empty() && config.without_rope[static_cast<size_t>(b)]) own.rope = -1;
  }
  return block;
}

double residual_deviation(const DecoderConfig& config) {
  if (!config.scaled_residual_init) return config.initializer_range;
  return config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
}

BlockTable llama_block(const DecoderConfig& config) {
  const int64_t d = config.hidden_size, f = config.intermediate_size;
  const int64_t q = config.num_attention_heads * config.head_dim, kv = config.num_key_value_heads * config.head_dim;
  const double deviation = config.initializer_range, into_residual = residual_deviation(config);
  BlockTable block = bare_block(config);
  using enum LayerKind;
  block.layers = {
      {"attention_norm",
       kNorm,
       d,
       {{"input_layernorm", d}},
       false,
       0,
       "",
       "self_attention.linear_qkv.layer_norm_weight"},
      {"qkv",
       kProduct,
       d,
       {{"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}},
       false,
       deviation,
       "self_attn.qkv_proj",
       "self_attention.linear_qkv.weight",
       config.num_key_value_heads},
      {"output", kProduct, q, {{"self_attn.o_proj", d}}, false, into_residual, "", "self_attention.linear_proj.weight"},
      {"mlp_norm", kNorm, d, {{"post_attention_layernorm", d}}, false, 0, "", "mlp.linear_fc1.layer_norm_weight"},
      {"up", kProduct, d, {{"mlp.gate_proj", f}, {"mlp.up_proj", f}}, false, deviation, "", "mlp.linear_fc1.weight"},
      {"down", kProduct, f, {{"mlp.down_proj", d}}, false, into_residual, "", "mlp.linear_fc2.weight"}};
  return block;
}

}  // namespace trireme
