// SmolLM 3: a Llama, some of whose blocks have no rotary positions, and may have a window.
#include "models/decoder/hf_config.h"

#include <algorithm>

namespace trireme {

namespace {

/// In no_rope_layers 1 is a block with rotary positions, 0 one without; the list may be longer than the model.
std::vector<bool> read_without_rope(ConfigReader& reader, int64_t layers) {
  const int64_t interval = reader.integer("no_rope_layer_interval", 4);
  if (!reader.has("no_rope_layers")) return every_nth(layers, interval);
  const nlohmann::json& list = reader.json()["no_rope_layers"];
  std::vector<bool> blocks;
  if (list.is_array())
    for (const nlohmann::json& has_rope : list)
      if (static_cast<int64_t>(blocks.size()) < layers && (has_rope == 0 || has_rope == 1))
        blocks.push_back(has_rope == 0);
  if (static_cast<int64_t>(blocks.size()) != layers) reader.lacking("no_rope_layers", list);
  return blocks;
}

DecoderConfig read_smollm3(ConfigReader& reader) {
  reader.only("attention_bias", {"false"});
  reader.only("mlp_bias", {"false"});
  DecoderConfig defaults;
  defaults.num_key_value_heads = 4;
  defaults.max_position_embeddings = 32768;
  defaults.rope.theta = 2e6;
  defaults.tie_word_embeddings = true;
  defaults.bos_token_id = 128000;
  defaults.eos_token_ids = {128001};
  defaults.pad_token_id = 128004;
  DecoderConfig config = read_llama_fields(reader, defaults);
  config.without_rope = read_without_rope(reader, config.num_hidden_layers);
  const bool uses_window = reader.boolean("use_sliding_window", false);
  if (uses_window && reader.has("sliding_window")) config.sliding_window = reader.integer("sliding_window");
  config.windowed = read_layer_types(reader, config.num_hidden_layers);
  if (config.sliding_window && config.windowed.empty()) config.windowed = config.without_rope;
  if (config.sliding_window) return config;
  if (std::ranges::find(config.windowed, true) != config.windowed.end())
    reader.lacking("layer_types", reader.json()["layer_types"]);
  config.windowed.clear();
  return config;
}

nlohmann::json write_smollm3(const DecoderConfig& config) {
  nlohmann::json json = llama_fields_json(config), with_rope = nlohmann::json::array();
  for (const bool without : config.without_rope) with_rope.push_back(without ? 0 : 1);
  json.update({{"attention_bias", false},
               {"mlp_bias", false},
               {"use_sliding_window", config.sliding_window.has_value()},
               {"sliding_window", or_null(config.sliding_window)},
               {"no_rope_layers", with_rope},
               {"layer_types", layer_types_json(config)}});
  return json;
}

std::vector<Preset> smollm3_presets() {
  DecoderConfig config = with_sizes({}, 2048, 11008, 36, 16, 4);
  config.family = "smollm3";
  config.vocab_size = 128256;
  config.max_position_embeddings = 65536;
  config.rope.theta = 5e6;
  config.tie_word_embeddings = true;
  config.bos_token_id = 128000;
  config.eos_token_ids = {128001};
  config.pad_token_id = 128004;
  config.dtype = "bfloat16";
  config.without_rope = every_nth(config.num_hidden_layers, 4);
  return {{"smollm3-3b", config}};
}

}  // namespace

const Family& smollm3_family() {
  static const Family family = {"smollm3",    "SmolLM3ForCausalLM", llama_tensor_names(), llama_block,
                                read_smollm3, write_smollm3,        smollm3_presets};
  return family;
}

}  // namespace trireme
