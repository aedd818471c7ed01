#pragma once
// What the config.json files of several families have in common.

#include "models/decoder/family.h"

#include <nlohmann/json.hpp>

namespace trireme {

/// Fields of a Llama and its descendants: sizes, RMS norm, SwiGLU, rotary positions, dropout of attention, special
/// tokens. `defaults`: values of absent fields (the sizes without a default are 0 and must be there).
DecoderConfig read_llama_fields(ConfigReader& reader, const DecoderConfig& defaults);
/// The same fields, with model_type and architectures of config.family.
nlohmann::json llama_fields_json(const DecoderConfig& config);
/// Qwen's sliding window, which the blocks from max_window_layers on have where use_sliding_window is set.
void read_qwen_window(ConfigReader& reader, DecoderConfig& config);
nlohmann::json qwen_window_json(const DecoderConfig& config);
/// Names of a Llama's tensors, and the table of its block.
TensorNames llama_tensor_names();
BlockTable llama_block(const DecoderConfig& config);
/// A table without layers, with what `config` says of the rest of a block.
BlockTable bare_block(const DecoderConfig& config);
/// Deviation of the initial values of a projection that ends in the residual.
double residual_deviation(const DecoderConfig& config);

/// bos_token_id, eos_token_id, pad_token_id and torch_dtype; refuses quantization_config.
void read_common_fields(ConfigReader& reader, DecoderConfig& config);
nlohmann::json common_fields_json(const DecoderConfig& config);

/// `path` as a JSON object.
nlohmann::json read_json_object(const std::filesystem::path& path, size_t max_bytes);

template <class T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace trireme
