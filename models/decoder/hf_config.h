#pragma once
// What several families share: fields of config.json, names of tensors, and the table of a Llama's block.

#include "models/decoder/family.h"

#include <nlohmann/json.hpp>

namespace trireme {

/// What a family's rotary parameters may say beyond a Llama's.
struct RopeWords {
  bool partial = false;        // a part of each head's elements rotates
  bool longrope_only = false;  // no other scaling; "su" and "yarn" are names of it
  int64_t original = 0;        // where original_max_position_embeddings beside the parameters is absent
};

/// Fields of a Llama and its descendants: sizes, RMS norm, SwiGLU, rotary positions, dropout of attention, special
/// tokens. `defaults`: values of absent fields (the sizes without a default are 0 and must be there); with window_rope
/// there is a set of rotary parameters for each kind of block.
DecoderConfig read_llama_fields(ConfigReader& reader, const DecoderConfig& defaults, const RopeWords& words = {});
/// Writes these fields, with model_type and architectures of config.family.
nlohmann::json llama_fields_json(const DecoderConfig& config);
/// The rotary parameters of config.json; an entry of rope_parameters; rope_scaling, which is null or the parameters
/// without the base. Defined in rope_config.cpp.
void read_rope(ConfigReader& reader, DecoderConfig& config, const RopeWords& words);
nlohmann::json rope_set_json(const RopeFrequencies& rope);
nlohmann::json rope_scaling_json(const DecoderConfig& config);
/// By block: `value` for every `interval`th one, of the first 10,000.
std::vector<bool> every_nth(int64_t layers, int64_t interval, bool value = true);
/// layer_types as DecoderConfig::windowed, empty where it is absent; and back.
std::vector<bool> read_layer_types(ConfigReader& reader, int64_t layers);
nlohmann::json layer_types_json(const DecoderConfig& config);
/// The same of a Qwen, whose blocks from max_window_layers on have a sliding window where use_sliding_window is set.
/// `head_dim`: where config.json has none; 0: hidden size / heads.
DecoderConfig read_qwen_fields(ConfigReader& reader, int64_t head_dim);
nlohmann::json qwen_fields_json(const DecoderConfig& config);
/// `choices` with the sizes of a published model, whose heads have hidden / heads elements, and Qwen's choices.
DecoderConfig with_sizes(DecoderConfig choices, int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads,
                         int64_t kv_heads);
DecoderConfig qwen_preset(const char* family, int64_t hidden, int64_t intermediate, int64_t layers, int64_t heads,
                          int64_t kv_heads, bool tied);
/// Names of a Llama's tensors, and the table of its block.
TensorNames llama_tensor_names();
BlockTable llama_block(const DecoderConfig& config);
/// A table without layers, with what `config` says of the rest of a block.
BlockTable bare_block(const DecoderConfig& config);
/// Deviation of the initial values of a projection that ends in the residual.
double residual_deviation(const DecoderConfig& config);

/// bos_token_id, eos_token_id, pad_token_id and torch_dtype; refuses a quantization_config other than bitsandbytes' NF4
/// with double quantisation.
void read_common_fields(ConfigReader& reader, DecoderConfig& config);
nlohmann::json common_fields_json(const DecoderConfig& config);

template <class T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace trireme
