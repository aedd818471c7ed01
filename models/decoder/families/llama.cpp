// Llama 1, 2 and 3.x. The table of the block and the names of the tensors are in hf_config.cpp: other families share
// them.
#include "models/decoder/hf_config.h"

namespace trireme {

namespace {

DecoderConfig read_llama(ConfigReader& reader) {
  reader.only("attention_bias", {"false"});
  reader.only("mlp_bias", {"false"});
  if (reader.has("sliding_window")) reader.lacking("sliding_window", reader.json()["sliding_window"]);
  DecoderConfig defaults;
  defaults.max_position_embeddings = 2048;
  return read_llama_fields(reader, defaults);
}

nlohmann::json write_llama(const DecoderConfig& config) {
  nlohmann::json json = llama_fields_json(config);
  json.update({{"attention_bias", false}, {"mlp_bias", false}});
  return json;
}

std::vector<Preset> llama_presets() {
  struct Shape {
    const char* name;
    int64_t hidden, intermediate, layers, heads, kv_heads, vocabulary, positions;
  };
  constexpr Shape kShapes[] = {
      {"llama-tiny", 128, 352, 4, 4, 2, 4096, 1024},           {"llama2-7b", 4096, 11008, 32, 32, 32, 32000, 4096},
      {"llama2-13b", 5120, 13824, 40, 40, 40, 32000, 4096},    {"llama2-34b", 8192, 22016, 48, 64, 8, 32000, 4096},
      {"llama2-70b", 8192, 28672, 80, 64, 8, 32000, 4096},     {"llama3-8b", 4096, 14336, 32, 32, 8, 128256, 8192},
      {"llama3.1-8b", 4096, 14336, 32, 32, 8, 128256, 131072}, {"llama3.1-70b", 8192, 28672, 80, 64, 8, 128256, 131072},
      {"llama3.2-1b", 2048, 8192, 16, 32, 8, 128256, 131072},  {"llama3.2-3b", 3072, 8192, 28, 24, 8, 128256, 131072},
      {"llama3.3-70b", 8192, 28672, 80, 64, 8, 128256, 131072}};
  std::vector<Preset> presets;
  for (const Shape& shape : kShapes) {
    const std::string name = shape.name;
    DecoderConfig config = with_sizes({}, shape.hidden, shape.intermediate, shape.layers, shape.heads, shape.kv_heads);
    config.vocab_size = shape.vocabulary;
    config.max_position_embeddings = shape.positions;
    config.norm_eps = 1e-5;
    config.dtype = name == "llama-tiny" ? "float32" : "bfloat16";
    if (name.starts_with("llama3")) {
      config.rope.theta = 500000.0;
      config.bos_token_id = 128000;
      config.eos_token_ids = {128001};
    }
    // Of the published models from 3.1 on those of 1 and 3 billion parameters are tied, and stretch further.
    config.tie_word_embeddings = name.starts_with("llama3.2");
    if (name.starts_with("llama3."))
      config.rope = {
          RopeFrequencies::Scaling::kLlama3, 500000.0, config.tie_word_embeddings ? 32.0 : 8.0, 1.0, 4.0, 8192};
    presets.push_back({name, config});
  }
  return presets;
}

}  // namespace

const Family& llama_family() {
  static const Family family = {"llama",    "LlamaForCausalLM", llama_tensor_names(), llama_block,
                                read_llama, write_llama,        llama_presets};
  return family;
}

}  // namespace trireme
