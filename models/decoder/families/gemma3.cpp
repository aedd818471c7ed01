// The text model of Gemma 3: norms with 1 + weight before and after attention and MLP and of each head of q and k,
// GeGLU, a scaled embedding that is the output matrix too, and windows in five of six blocks, which have their own
// rotary base.
#include "models/decoder/hf_config.h"

#include <cmath>

namespace trireme {

namespace {

BlockTable gemma3_block(const DecoderConfig& config) {
  const int64_t d = config.hidden_size, h = config.head_dim;
  const BlockTable llama = llama_block(config);
  BlockTable block = llama;
  using enum LayerKind;
  block.layers = {llama.at("attention_norm"),
                  llama.at("qkv"),
                  {"q_norm", kHeadNorm, config.num_attention_heads * h, {{"self_attn.q_norm", h}}},
                  {"k_norm", kHeadNorm, config.num_key_value_heads * h, {{"self_attn.k_norm", h}}},
                  llama.at("output"),
                  {"attention_branch_norm", kBranchNorm, d, {{"post_attention_layernorm", d}}},
                  {"mlp_norm", kNorm, d, {{"pre_feedforward_layernorm", d}}},
                  llama.at("up"),
                  llama.at("down"),
                  {"mlp_branch_norm", kBranchNorm, d, {{"post_feedforward_layernorm", d}}}};
  return block;
}

/// The choices of every Gemma 3.
DecoderConfig gemma3_choices() {
  DecoderConfig config;
  config.family = "gemma3_text";
  config.head_dim = 256;
  config.max_position_embeddings = 131072;
  config.norm = NormKind::kRmsPlusOne;
  config.activation = Activation::kGegluTanh;
  config.tie_word_embeddings = true;
  config.rope.theta = 1e6;
  config.window_rope = RopeFrequencies();
  config.bos_token_id = 2;
  config.eos_token_ids = {1};
  config.pad_token_id = 0;
  return config;
}

DecoderConfig read_gemma3(ConfigReader& reader) {
  reader.only("attention_bias", {"false"});
  reader.only("hidden_activation", {"\"gelu_pytorch_tanh\""});
  reader.only("use_bidirectional_attention", {"false"});
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"})
    if (reader.has(key)) reader.lacking(key, reader.json()[key]);
  DecoderConfig defaults = gemma3_choices();
  defaults.num_key_value_heads = 4;
  DecoderConfig config = read_llama_fields(reader, defaults);
  config.embedding_multiplier = std::sqrt(static_cast<double>(config.hidden_size));
  config.attention_multiplier = 1 / std::sqrt(static_cast<double>(reader.integer("query_pre_attn_scalar", 256)));
  if (reader.is_null("sliding_window")) reader.lacking("sliding_window", nullptr);
  config.sliding_window = reader.integer("sliding_window", 4096);
  config.windowed = read_layer_types(reader, config.num_hidden_layers);
  if (config.windowed.empty())
    config.windowed = every_nth(config.num_hidden_layers, reader.integer("sliding_window_pattern", 6), false);
  return config;
}

nlohmann::json write_gemma3(const DecoderConfig& config) {
  const double scale = config.attention_multiplier;
  nlohmann::json json = llama_fields_json(config);
  json.erase("hidden_act");
  json.update(
      {{"attention_bias", false},
       {"hidden_activation", "gelu_pytorch_tanh"},
       {"query_pre_attn_scalar", std::llround(1 / (scale * scale))},
       {"sliding_window", or_null(config.sliding_window)},
       {"layer_types", layer_types_json(config)},
       {"final_logit_softcapping", nullptr},
       {"attn_logit_softcapping", nullptr},
       {"rope_local_base_freq", config.window_rope->theta},
       {"rope_parameters",
        {{"full_attention", rope_set_json(config.rope)}, {"sliding_attention", rope_set_json(*config.window_rope)}}}});
  return json;
}

Preset gemma3_preset(const char* name, int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads,
                     int64_t kv_heads, int64_t window) {
  DecoderConfig config = with_sizes(gemma3_choices(), hidden, intermediate, layers, heads, kv_heads);
  const bool small = window == 512;
  config.head_dim = layers == 62 ? 128 : 256;
  config.vocab_size = small ? 262144 : 262208;
  config.max_position_embeddings = small ? 32768 : 131072;
  config.embedding_multiplier = std::sqrt(static_cast<double>(hidden));
  config.attention_multiplier = 1 / std::sqrt(layers == 62 ? 168.0 : 256.0);
  config.sliding_window = window;
  config.windowed = every_nth(layers, 6, false);
  if (!small) {
    config.rope.scaling = RopeFrequencies::Scaling::kLinear;
    config.rope.factor = 8;
  }
  config.dtype = "bfloat16";
  return {name, config};
}

std::vector<Preset> gemma3_presets() {
  return {gemma3_preset("gemma3-270m", 640, 2048, 18, 4, 1, 512), gemma3_preset("gemma3-1b", 1152, 6912, 26, 4, 1, 512),
          gemma3_preset("gemma3-4b", 2560, 10240, 34, 8, 4, 1024),
          gemma3_preset("gemma3-12b", 3840, 15360, 48, 16, 8, 1024),
          gemma3_preset("gemma3-27b", 5376, 21504, 62, 32, 16, 1024)};
}

}  // namespace

const Family& gemma3_family() {
  static const Family family = {"gemma3_text", "Gemma3ForCausalLM", llama_tensor_names(), gemma3_block,
                                read_gemma3,   write_gemma3,        gemma3_presets};
  return family;
}

}  // namespace trireme
