// Qwen2 and Qwen2.5: a Llama with biases on the q, k and v projections.
#include "models/decoder/hf_config.h"

namespace trireme {

namespace {

BlockTable qwen2_block(const DecoderConfig& config) {
  BlockTable block = llama_block(config);
  block.layers[static_cast<size_t>(block.find("qkv"))].bias = true;
  return block;
}

DecoderConfig read_qwen2(ConfigReader& reader) {
  DecoderConfig defaults;
  defaults.num_key_value_heads = 32;
  defaults.max_position_embeddings = 32768;
  defaults.bos_token_id = std::nullopt;
  defaults.eos_token_ids = {};
  DecoderConfig config = read_llama_fields(reader, defaults);
  read_qwen_window(reader, config);
  return config;
}

nlohmann::json write_qwen2(const DecoderConfig& config) {
  nlohmann::json json = llama_fields_json(config);
  json.update(qwen_window_json(config));
  return json;
}

Preset qwen2_preset(const char* name, int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads,
                    int64_t kv_heads, int64_t vocabulary, bool tied) {
  DecoderConfig config;
  config.family = "qwen2";
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.num_hidden_layers = config.full_attention_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = hidden / heads;
  config.vocab_size = vocabulary;
  config.max_position_embeddings = 131072;
  config.rope_theta = 1e6;
  config.tie_word_embeddings = tied;
  config.bos_token_id = 151643;
  config.eos_token_ids = {151643};
  config.dtype = "bfloat16";
  return {name, config};
}

std::vector<Preset> qwen2_presets() {
  return {qwen2_preset("qwen2-0.5b", 896, 4864, 24, 14, 2, 151936, true),
          qwen2_preset("qwen2-1.5b", 1536, 8960, 28, 12, 2, 151936, true),
          qwen2_preset("qwen2-7b", 3584, 18944, 28, 28, 4, 152064, false)};
}

}  // namespace

const Family& qwen2_family() {
  static const Family family = {"qwen2",    "Qwen2ForCausalLM", llama_tensor_names(), qwen2_block,
                                read_qwen2, write_qwen2,        qwen2_presets};
  return family;
}

}  // namespace trireme
