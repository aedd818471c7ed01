// Qwen3 without experts: a Llama with an RMS norm of each head of q and k in front of the rotation.
#include "models/decoder/hf_config.h"

namespace trireme {

namespace {

BlockTable qwen3_block(const DecoderConfig& config) {
  const int64_t h = config.head_dim;
  BlockTable block = llama_block(config);
  const auto output = block.layers.begin() + block.find("output");
  block.layers.insert(output,
                      {{"q_norm", LayerKind::kHeadNorm, config.num_attention_heads * h, {{"self_attn.q_norm", h}}},
                       {"k_norm", LayerKind::kHeadNorm, config.num_key_value_heads * h, {{"self_attn.k_norm", h}}}});
  return block;
}

DecoderConfig read_qwen3(ConfigReader& reader) {
  reader.only("attention_bias", {"false"});
  return read_qwen_fields(reader, /*head_dim=*/128);
}

nlohmann::json write_qwen3(const DecoderConfig& config) {
  nlohmann::json json = qwen_fields_json(config);
  json["attention_bias"] = false;
  return json;
}

Preset qwen3_preset(const char* name, int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads, bool tied) {
  DecoderConfig config = qwen_preset("qwen3", hidden, intermediate, layers, heads, 8, tied);
  config.head_dim = 128;
  config.vocab_size = 151936;
  config.max_position_embeddings = 40960;
  config.eos_token_ids = {151645};
  return {name, config};
}

std::vector<Preset> qwen3_presets() {
  return {qwen3_preset("qwen3-0.6b", 1024, 3072, 28, 16, true),  qwen3_preset("qwen3-1.7b", 2048, 6144, 28, 16, true),
          qwen3_preset("qwen3-4b", 2560, 9728, 36, 32, true),    qwen3_preset("qwen3-8b", 4096, 12288, 36, 32, false),
          qwen3_preset("qwen3-14b", 5120, 17408, 40, 40, false), qwen3_preset("qwen3-32b", 5120, 25600, 64, 64, false)};
}

}  // namespace

const Family& qwen3_family() {
  static const Family family = {"qwen3",    "Qwen3ForCausalLM", llama_tensor_names(), qwen3_block,
                                read_qwen3, write_qwen3,        qwen3_presets};
  return family;
}

}  // namespace trireme
