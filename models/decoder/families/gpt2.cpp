// GPT-2 and GPT-3: LayerNorm in front of both sub-layers, biases everywhere, GELU, learned positions, dropout, tied
// output.
#include "models/decoder/hf_config.h"
#include "trireme/base/dropout_steps.h"

#include <algorithm>

namespace trireme {

namespace {

/// The choices of every GPT-2, with the dropout of the published models.
DecoderConfig gpt2_choices() {
  DecoderConfig config;
  config.family = "gpt2";
  config.norm = NormKind::kLayer;
  config.norm_eps = 1e-5;
  config.activation = Activation::kGeluTanh;
  config.positions = DecoderPositions::kLearned;
  config.embedding_dropout = config.attention_dropout = config.residual_dropout = 0.1;
  config.scaled_residual_init = true;
  config.tie_word_embeddings = true;
  config.vocab_size = 50257;
  config.max_position_embeddings = 1024;
  config.bos_token_id = 50256;
  config.eos_token_ids = {50256};
  return config;
}

void read_activation_function(ConfigReader& reader, DecoderConfig& config) {
  if (!reader.has("activation_function")) return;
  const nlohmann::json& name = reader.json()["activation_function"];
  if (name == "gelu")
    config.activation = Activation::kGeluErf;
  else if (name != "gelu_new" && name != "gelu_pytorch_tanh" && name != "gelu_fast")
    reader.lacking("activation_function", name);
}

DecoderConfig read_gpt2(ConfigReader& reader) {
  reader.only("scale_attn_weights", {"true"});
  reader.only("scale_attn_by_inverse_layer_idx", {"false"});
  reader.only("reorder_and_upcast_attn", {"false"});
  reader.only("add_cross_attention", {"false"});
  // transformers takes the common names too, and prefers them.
  const auto size = [&](const char* own, const char* common, int64_t otherwise) {
    return reader.integer(reader.has(common) ? common : own, otherwise);
  };
  DecoderConfig config = gpt2_choices();
  config.hidden_size = size("n_embd", "hidden_size", 768);
  config.intermediate_size = reader.integer("n_inner", 4 * config.hidden_size);
  config.num_hidden_layers = size("n_layer", "num_hidden_layers", 12);
  config.num_attention_heads = config.num_key_value_heads = size("n_head", "num_attention_heads", 12);
  config.head_dim = std::max<int64_t>(1, config.hidden_size / config.num_attention_heads);
  config.vocab_size = reader.integer("vocab_size", config.vocab_size);
  config.max_position_embeddings = size("n_positions", "max_position_embeddings", config.max_position_embeddings);
  if (reader.is_null("layer_norm_epsilon")) reader.problem("layer_norm_epsilon is null, expected a positive number");
  config.norm_eps = reader.number("layer_norm_epsilon", config.norm_eps);
  config.initializer_range = reader.number("initializer_range", config.initializer_range);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
  config.embedding_dropout = reader.probability("embd_pdrop", 0.1, kActivationDropoutSteps);
  config.attention_dropout = reader.probability("attn_pdrop", 0.1, kAttentionDropoutSteps);
  config.residual_dropout = reader.probability("resid_pdrop", 0.1, kActivationDropoutSteps);
  read_activation_function(reader, config);
  for (const char* key : {"rope_parameters", "rope_scaling"}) (void)reader.object(key);
  read_common_fields(reader, config);
  return config;
}

nlohmann::json write_gpt2(const DecoderConfig& config) {
  nlohmann::json json = common_fields_json(config);
  json.update({{"n_embd", config.hidden_size},
               {"n_inner", config.intermediate_size},
               {"n_layer", config.num_hidden_layers},
               {"n_head", config.num_attention_heads},
               {"n_positions", config.max_position_embeddings},
               {"n_ctx", config.max_position_embeddings},
               {"layer_norm_epsilon", config.norm_eps},
               {"activation_function", config.activation == Activation::kGeluErf ? "gelu" : "gelu_new"},
               {"embd_pdrop", config.embedding_dropout},
               {"attn_pdrop", config.attention_dropout},
               {"resid_pdrop", config.residual_dropout}});
  return json;
}

Preset gpt2_preset(const char* name, int64_t hidden, int64_t layers, int64_t heads) {
  return {name, with_sizes(gpt2_choices(), hidden, 4 * hidden, layers, heads, heads)};
}

/// GPT-3 is GPT-2's architecture with rows of 2048 tokens, as NeMo's configurations gpt3/*.yaml have it; `deviation`:
/// their init_method_std, or its rule 0.64 / sqrt(hidden) for sizes that they lack.
Preset gpt3_preset(const char* name, int64_t hidden, int64_t layers, int64_t heads, double deviation) {
  Preset preset = gpt2_preset(name, hidden, layers, heads);
  preset.config.max_position_embeddings = 2048;
  preset.config.initializer_range = deviation;
  return preset;
}

std::vector<Preset> gpt2_presets() {
  return {gpt2_preset("gpt2", 768, 12, 12),
          gpt2_preset("gpt2-medium", 1024, 24, 16),
          gpt2_preset("gpt2-large", 1280, 36, 20),
          gpt2_preset("gpt2-xl", 1600, 48, 25),
          gpt3_preset("gpt3-126m", 768, 12, 12, 0.023),
          gpt3_preset("gpt3-350m", 1024, 24, 16, 0.02),
          gpt3_preset("gpt3-760m", 1536, 24, 16, 0.01633),
          gpt3_preset("gpt3-1.3b", 2048, 24, 16, 0.014142),
          gpt3_preset("gpt3-2.7b", 2560, 32, 32, 0.012649),
          gpt3_preset("gpt3-5b", 4096, 24, 32, 0.01),
          gpt3_preset("gpt3-6.7b", 4096, 32, 32, 0.01),
          gpt3_preset("gpt3-13b", 5120, 40, 40, 0.008944),
          gpt3_preset("gpt3-20b", 6144, 44, 48, 0.008165)};
}

const TensorNames kGpt2Names = {.base = "transformer.",
                                .embedding = "transformer.wte",
                                .positions = "transformer.wpe",
                                .blocks = "transformer.h.",
                                .final_norm = "transformer.ln_f",
                                .buffers = {".attn.bias", ".attn.masked_bias"}};  // the causal mask

BlockTable gpt2_block(const DecoderConfig& config) {
  const int64_t d = config.hidden_size, f = config.intermediate_size;
  const double deviation = config.initializer_range, into_residual = residual_deviation(config);
  BlockTable block = bare_block(config);
  block.transposed = true;
  block.layers = {{"attention_norm", LayerKind::kNorm, d, {{"ln_1", d}}, true},
                  {"qkv", LayerKind::kProduct, d, {{"attn.c_attn", 3 * d}}, true, deviation},
                  {"output", LayerKind::kProduct, d, {{"attn.c_proj", d}}, true, into_residual},
                  {"mlp_norm", LayerKind::kNorm, d, {{"ln_2", d}}, true},
                  {"up", LayerKind::kProduct, d, {{"mlp.c_fc", f}}, true, deviation},
                  {"down", LayerKind::kProduct, f, {{"mlp.c_proj", d}}, true, into_residual}};
  return block;
}

}  // namespace

const Family& gpt2_family() {
  static const Family family = {"gpt2", "GPT2LMHeadModel", kGpt2Names, gpt2_block, read_gpt2, write_gpt2, gpt2_presets};
  return family;
}

}  // namespace trireme
