// Mistral 7B and its descendants without experts: a Llama, whose attention may see a window of tokens only.
#include "models/decoder/hf_config.h"

namespace trireme {

namespace {

/// The shape of Mistral 7B v0.1.
DecoderConfig mistral_7b() {
  DecoderConfig config = with_sizes({}, 4096, 14336, 32, 32, 8);
  config.family = "mistral";
  config.vocab_size = 32000;
  config.max_position_embeddings = 32768;
  config.norm_eps = 1e-5;
  config.sliding_window = 4096;
  config.dtype = "bfloat16";
  return config;
}

DecoderConfig read_mistral(ConfigReader& reader) {
  if (reader.has("layer_types")) reader.lacking("layer_types", reader.json()["layer_types"]);
  DecoderConfig defaults;
  defaults.max_position_embeddings = 131072;
  defaults.num_key_value_heads = 8;
  DecoderConfig config = read_llama_fields(reader, defaults);
  // transformers takes a window of 4,096 where the field is absent, and none where it is null.
  if (!reader.is_null("sliding_window")) config.sliding_window = reader.integer("sliding_window", 4096);
  return config;
}

nlohmann::json write_mistral(const DecoderConfig& config) {
  nlohmann::json json = llama_fields_json(config);
  json["sliding_window"] = or_null(config.sliding_window);
  return json;
}

std::vector<Preset> mistral_presets() {
  DecoderConfig v03 = mistral_7b();
  v03.vocab_size = 32768;
  v03.rope.theta = 1e6;
  v03.sliding_window = std::nullopt;
  return {{"mistral-7b-v0.1", mistral_7b()}, {"mistral-7b-v0.3", v03}};
}

}  // namespace

const Family& mistral_family() {
  static const Family family = {"mistral",    "MistralForCausalLM", llama_tensor_names(), llama_block,
                                read_mistral, write_mistral,        mistral_presets};
  return family;
}

}  // namespace trireme
