// Granite 3: a Llama with multipliers of the embedding, of what attention and MLP add to the residual, and of
// attention's scores, and with a divisor of the logits.
#include "models/decoder/hf_config.h"

namespace trireme {

namespace {

DecoderConfig read_granite(ConfigReader& reader) {
  reader.only("attention_bias", {"false"});
  reader.only("mlp_bias", {"false"});
  DecoderConfig defaults;
  defaults.max_position_embeddings = 2048;
  DecoderConfig config = read_llama_fields(reader, defaults);
  config.embedding_multiplier = reader.number("embedding_multiplier", 1);
  config.residual_multiplier = reader.number("residual_multiplier", 1);
  config.attention_multiplier = reader.number("attention_multiplier", 1);
  config.logits_divisor = reader.number("logits_scaling", 1);
  return config;
}

nlohmann::json write_granite(const DecoderConfig& config) {
  nlohmann::json json = llama_fields_json(config);
  json.update({{"attention_bias", false},
               {"mlp_bias", false},
               {"embedding_multiplier", config.embedding_multiplier},
               {"residual_multiplier", config.residual_multiplier},
               {"attention_multiplier", config.attention_multiplier},
               {"logits_scaling", config.logits_divisor}});
  return json;
}

Preset granite_preset(const char* name, int64_t hidden, int64_t intermediate, double attention, double logits) {
  DecoderConfig config = with_sizes({}, hidden, intermediate, 40, 32, 8);
  config.family = "granite";
  config.vocab_size = 49159;
  config.max_position_embeddings = 131072;
  config.norm_eps = 1e-5;
  config.rope.theta = 1e7;
  config.tie_word_embeddings = true;
  config.embedding_multiplier = 12;
  config.residual_multiplier = 0.22;
  config.attention_multiplier = attention;
  config.logits_divisor = logits;
  config.bos_token_id = config.pad_token_id = 0;
  config.eos_token_ids = {0};
  config.dtype = "bfloat16";
  return {name, config};
}

std::vector<Preset> granite_presets() {
  return {granite_preset("granite3.3-2b", 2048, 8192, 0.015625, 8),
          granite_preset("granite3.3-8b", 4096, 12800, 0.0078125, 16)};
}

}  // namespace

const Family& granite_family() {
  static const Family family = {"granite",    "GraniteForCausalLM", llama_tensor_names(), llama_block,
                                read_granite, write_granite,        granite_presets};
  return family;
}

}  // namespace trireme
