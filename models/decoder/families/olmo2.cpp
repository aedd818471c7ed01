// OLMo 2: a Llama whose norms follow attention and MLP, in front of their addition to the residual, and with an RMS
// norm of all heads of q and of k together.
#include "models/decoder/hf_config.h"

namespace trireme {

namespace {

BlockTable olmo2_block(const DecoderConfig& config) {
  const int64_t d = config.hidden_size, q = config.num_attention_heads * config.head_dim,
                kv = config.num_key_value_heads * config.head_dim;
  const BlockTable llama = llama_block(config);
  BlockTable block = llama;
  using enum LayerKind;
  block.layers = {llama.at("qkv"),
                  {"q_norm", kHeadNorm, q, {{"self_attn.q_norm", q}}},
                  {"k_norm", kHeadNorm, kv, {{"self_attn.k_norm", kv}}},
                  llama.at("output"),
                  {"attention_branch_norm", kBranchNorm, d, {{"post_attention_layernorm", d}}},
                  llama.at("up"),
                  llama.at("down"),
                  {"mlp_branch_norm", kBranchNorm, d, {{"post_feedforward_layernorm", d}}}};
  return block;
}

DecoderConfig read_olmo2(ConfigReader& reader) {
  reader.only("attention_bias", {"false"});
  DecoderConfig defaults;
  defaults.max_position_embeddings = 2048;
  defaults.norm_eps = 1e-5;
  defaults.bos_token_id = std::nullopt;
  defaults.eos_token_ids = {50279};
  defaults.pad_token_id = 1;
  return read_llama_fields(reader, defaults);
}

nlohmann::json write_olmo2(const DecoderConfig& config) {
  nlohmann::json json = llama_fields_json(config);
  json["attention_bias"] = false;
  return json;
}

Preset olmo2_preset(const char* name, int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads,
                    int64_t kv_heads) {
  DecoderConfig config = with_sizes({}, hidden, intermediate, layers, heads, kv_heads);
  config.family = "olmo2";
  config.vocab_size = 100352;
  config.max_position_embeddings = 4096;
  config.rope.theta = 500000;
  config.bos_token_id = std::nullopt;
  config.eos_token_ids = {100257};
  config.pad_token_id = 100277;
  config.dtype = "bfloat16";
  return {name, config};
}

std::vector<Preset> olmo2_presets() {
  return {olmo2_preset("olmo2-1b", 2048, 8192, 16, 16, 16), olmo2_preset("olmo2-7b", 4096, 11008, 32, 32, 32),
          olmo2_preset("olmo2-13b", 5120, 13824, 40, 40, 40), olmo2_preset("olmo2-32b", 5120, 27648, 64, 40, 8)};
}

}  // namespace

const Family& olmo2_family() {
  static const Family family = {"olmo2",    "Olmo2ForCausalLM", llama_tensor_names(), olmo2_block,
                                read_olmo2, write_olmo2,        olmo2_presets};
  return family;
}

}  // namespace trireme
