// Qwen2 and Qwen2.5: a Llama with biases on the q, k and v projections.
#include "models/decoder/hf_config.h"

namespace trireme {

namespace {

BlockTable qwen2_block(const DecoderConfig& config) {
  BlockTable block = llama_block(config);
  block.layers[static_cast<size_t>(block.find("qkv"))].bias = true;
  return block;
}

DecoderConfig read_qwen2(ConfigReader& reader) { return read_qwen_fields(reader, /*head_dim=*/0); }

Preset qwen2_preset(const char* name, int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads,
                    int64_t kv_heads, int64_t vocabulary, bool tied) {
  DecoderConfig config = qwen_preset("qwen2", hidden, intermediate, layers, heads, kv_heads, tied);
  config.vocab_size = vocabulary;
  config.max_position_embeddings = 131072;
  config.eos_token_ids = {151643};
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
                                read_qwen2, qwen_fields_json,   qwen2_presets};
  return family;
}

}  // namespace trireme
