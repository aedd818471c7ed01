#include "imported_model.h"

#include "models/decoder/config.h"

namespace trireme {

namespace {

/// GPT-2's and GPT-3's choices, as models/decoder/families/gpt2.cpp has them.
void set_gpt_choices(DecoderConfig& config, const ImportedModel& model) {
  config.family = "gpt2";
  config.norm = DecoderNorm::kLayer;
  config.activation = model.gelu_erf ? DecoderActivation::kGeluErf : DecoderActivation::kGeluTanh;
  config.positions = DecoderPositions::kLearned;
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  config.embedding_dropout = config.residual_dropout = model.hidden_dropout;
  config.attention_dropout = model.attention_dropout;
  config.scaled_residual_init = true;
  config.tie_word_embeddings = true;
  // <|endoftext|> is the last token of GPT-2's vocabulary.
  config.bos_token_id = model.vocab_size - 1;
  config.eos_token_ids = {model.vocab_size - 1};
}

}  // namespace

std::string imported_model_json(const ImportedModel& model) {
  DecoderConfig config;
  config.hidden_size = model.hidden_size;
  config.intermediate_size = model.intermediate_size;
  config.num_hidden_layers = model.layers;
  config.num_attention_heads = model.heads;
  config.num_key_value_heads = model.kv_heads;
  config.head_dim = model.hidden_size / model.heads;
  config.vocab_size = model.vocab_size;
  config.max_position_embeddings = model.positions;
  config.norm_eps = model.norm_eps;
  config.initializer_range = model.initializer_range;
  config.rope_theta = model.rope_theta;
  config.dtype = "bfloat16";
  if (model.gpt) set_gpt_choices(config, model);
  if (!model.gpt && model.vocab_size == 128256) {
    config.bos_token_id = 128000;
    config.eos_token_ids = {128001};
  }
  return decoder_config_json(config);
}

}  // namespace trireme
