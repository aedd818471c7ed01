#include "models/decoder/hf_config.h"

#include "trireme/base/dropout_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

using Json = nlohmann::json;

/// rope_scaling, if it exists and is not empty, replaces rope_parameters; rope_theta beside them counts where neither
/// holds one.
void read_rope(ConfigReader& reader, DecoderConfig& config) {
  const Json& json = reader.json();
  config.rope.theta = reader.number("rope_theta", config.rope.theta);
  // transformers 5 writes one object, rope_parameters; transformers 4 rope_theta beside rope_scaling. If both exist,
  // transformers reads only rope_scaling, unless it is empty.
  const auto holds = [&](const char* name) { return reader.has(name) && !json[name].empty(); };
  const char* key = holds("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!holds(key)) return;
  const Json& rope = json[key];
  if (!rope.is_object()) return reader.problem(fmt::format("{} is not an object", key));
  for (const auto& [name, value] : rope.items())
    if (value.is_object()) reader.lacking(fmt::format("{}.{}", key, name), value);  // one set for each kind of layer
  config.rope.theta = reader.number(rope, "rope_theta", config.rope.theta);
  if (rope.contains("partial_rotary_factor") && rope["partial_rotary_factor"] != Json(1.0))
    reader.lacking("partial_rotary_factor", rope["partial_rotary_factor"]);
  const Json type = rope.contains("rope_type") ? rope["rope_type"]
                    : rope.contains("type")    ? rope["type"]
                                               : Json("default");
  if (type == "default") return;
  const std::string name = type.is_string() ? type.get<std::string>() : type.dump();
  config.rope.factor = reader.number(rope, "factor", 0.0);
  if (name == "linear") {
    config.rope.scaling = RopeFrequencies::Scaling::kLinear;
  } else if (name == "llama3") {
    config.rope.scaling = RopeFrequencies::Scaling::kLlama3;
    const Json outer = member(json, "original_max_position_embeddings");
    for (const char* field : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
      if (!rope.contains(field) && (outer.is_null() || field != std::string("original_max_position_embeddings")))
        reader.problem(fmt::format("{}.{} is missing", key, field));
    config.rope.low_freq_factor = reader.number(rope, "low_freq_factor", 1.0);
    config.rope.high_freq_factor = reader.number(rope, "high_freq_factor", 4.0);
    // A value beside rope_scaling overrides the one in it.
    const double original = reader.number(outer.is_null() ? rope : json, "original_max_position_embeddings", 8192);
    if (original < 1 || original > static_cast<double>(ConfigReader::kMaxInteger) || original != std::floor(original))
      reader.problem(fmt::format("{}.original_max_position_embeddings is {}, expected an integer from 1 to {}", key,
                                 original, ConfigReader::kMaxInteger));
    else
      config.rope.original_max_position = static_cast<int64_t>(original);
    if (config.rope.high_freq_factor <= config.rope.low_freq_factor)
      reader.problem(fmt::format("{}.high_freq_factor must be greater than low_freq_factor", key));
  } else {
    return reader.lacking(fmt::format("{}.rope_type", key), type);
  }
  if (!rope.contains("factor")) reader.problem(fmt::format("{}.factor is missing", key));
}

Json rope_parameters_json(const DecoderConfig& config) {
  Json rope = {{"rope_type", "default"}};
  if (config.rope.scaling == RopeFrequencies::Scaling::kLinear)
    rope = {{"rope_type", "linear"}, {"factor", config.rope.factor}};
  else if (config.rope.scaling == RopeFrequencies::Scaling::kLlama3)
    rope = {{"rope_type", "llama3"},
            {"factor", config.rope.factor},
            {"low_freq_factor", config.rope.low_freq_factor},
            {"high_freq_factor", config.rope.high_freq_factor},
            {"original_max_position_embeddings", config.rope.original_max_position}};
  return rope;
}

/// transformers 4's field beside rope_theta: null, or the parameters without the base.
Json rope_scaling_json(const DecoderConfig& config) {
  if (config.rope.scaling == RopeFrequencies::Scaling::kNone) return Json();
  Json scaling = rope_parameters_json(config);
  if (config.rope.scaling == RopeFrequencies::Scaling::kLinear) scaling["type"] = "linear";
  return scaling;
}

/// As transformers writes eos_token_id: null, one id, or a list.
Json id_or_list(const std::vector<int64_t>& ids) {
  if (ids.empty()) return Json();
  return ids.size() == 1 ? Json(ids[0]) : Json(ids);
}

std::optional<int64_t> required_or(int64_t value) { return value > 0 ? std::optional(value) : std::nullopt; }

}  // namespace

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

DecoderConfig read_llama_fields(ConfigReader& reader, const DecoderConfig& defaults) {
  reader.only("hidden_act", {"\"silu\"", "\"swish\""});
  reader.only("partial_rotary_factor", {"1", "1.0"});
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
  read_rope(reader, config);
  read_common_fields(reader, config);
  return config;
}

nlohmann::json llama_fields_json(const DecoderConfig& config) {
  Json rope = rope_parameters_json(config);
  rope["rope_theta"] = config.rope.theta;
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
               {"rope_parameters", rope}});
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
  if (!reader.has("layer_types")) return config;
  Json expected = Json::array();
  for (int64_t layer = 0; layer < std::min<int64_t>(config.num_hidden_layers, 10'000); ++layer)
    expected.push_back(config.sliding_window && layer >= config.full_attention_layers ? "sliding_attention"
                                                                                      : "full_attention");
  if (reader.json()["layer_types"] != expected) reader.lacking("layer_types", reader.json()["layer_types"]);
  return config;
}

Json qwen_fields_json(const DecoderConfig& config) {
  Json json = llama_fields_json(config);
  json.update({{"use_sliding_window", config.sliding_window.has_value()},
               {"sliding_window", or_null(config.sliding_window)},
               {"max_window_layers", config.full_attention_layers}});
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
  block.gated = config.activation == Activation::kSwiglu;
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
