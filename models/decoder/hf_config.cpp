#include "models/decoder/hf_config.h"

#include "trireme/base/dropout_steps.h"
#include "trireme/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace trireme {

namespace {

using Json = nlohmann::json;

/// As transformers writes eos_token_id: null, one id, or a list.
Json id_or_list(const std::vector<int64_t>& ids) {
  if (ids.empty()) return Json();
  return ids.size() == 1 ? Json(ids[0]) : Json(ids);
}

std::optional<int64_t> required_or(int64_t value) { return value > 0 ? std::optional(value) : std::nullopt; }

/// Whether these are bitsandbytes' settings of what formats/huggingface/stored_nf4.h reads.
bool is_nf4(const Json& settings) {
  const Json storage = member(settings, "bnb_4bit_quant_storage");
  return member(settings, "quant_method") == "bitsandbytes" && member(settings, "load_in_4bit") == true &&
         member(settings, "bnb_4bit_quant_type") == "nf4" && member(settings, "bnb_4bit_use_double_quant") == true &&
         (storage.is_null() || storage == "uint8");
}

}  // namespace

void read_common_fields(ConfigReader& reader, DecoderConfig& config) {
  const Json& json = reader.json();
  if (reader.has("quantization_config") && !is_nf4(json["quantization_config"])) {
    const Json method = member(json["quantization_config"], "quant_method");
    Json deciding;
    for (const char* key :
         {"load_in_4bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage"})
      deciding[key] = member(json["quantization_config"], key);
    if (method == "bitsandbytes")
      reader.lacking("quantization_config of bitsandbytes", deciding);
    else
      reader.lacking("quantization_config.quant_method", method);
  }
  // transformers takes null for false.
  if (json.contains("is_causal") && json["is_causal"] != true) reader.lacking("is_causal", json["is_causal"]);
  config.bos_token_id = reader.token_id("bos_token_id", config.bos_token_id);
  config.eos_token_ids = reader.token_ids("eos_token_id", config.eos_token_ids);
  config.pad_token_id = reader.token_id("pad_token_id", config.pad_token_id, /*lowest=*/-1);
  if (padding_row(config) >= config.vocab_size)
    reader.problem(
        fmt::format("pad_token_id is {}, and the vocabulary has {} tokens", *config.pad_token_id, config.vocab_size));
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
  if (reader.is_null("rms_norm_eps")) reader.problem("rms_norm_eps is null, expected a positive number");
  config.norm_eps = reader.number("rms_norm_eps", defaults.norm_eps);
  config.initializer_range = reader.number("initializer_range", defaults.initializer_range);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", defaults.tie_word_embeddings);
  config.attention_dropout = reader.probability("attention_dropout", 0, kAttentionDropoutSteps);
  read_rope(reader, config, words);
  read_common_fields(reader, config);
  return config;
}

std::vector<bool> every_nth(int64_t layers, int64_t interval, bool value) {
  std::vector<bool> blocks;
  for (int64_t b = 0; b < std::min<int64_t>(layers, 10'000); ++b) blocks.push_back(((b + 1) % interval == 0) == value);
  return blocks;
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
  // transformers 4 reads it here.
  if (config.rope.scaling == RopeFrequencies::Scaling::kLongrope)
    json["original_max_position_embeddings"] = config.rope.original_max_position;
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
  if (reader.boolean("use_sliding_window", false) && !reader.is_null("sliding_window")) config.sliding_window = window;
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
  block.fp8_attention = config.fp8_attention;
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
