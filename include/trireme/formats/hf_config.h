#pragma once
// Hugging Face config.json of LlamaForCausalLM, read strictly: what it asks and we lack is refused by name
// (ModelError).

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme {

struct RopeScaling {
  enum class Type { kNone, kLinear, kLlama3 } type = Type::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  int64_t original_max_position = 8192;                  // llama3
};

/// Shape of a Llama: every field under the name that config.json gives it.
struct LlamaConfig {
  int64_t hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  int64_t vocab_size = 0, max_position_embeddings = 0;
  double rms_norm_eps = 1e-6, rope_theta = 10000.0, initializer_range = 0.02;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  int64_t bos_token_id = 1, eos_token_id = 2;
  std::string dtype = "float32";  // torch_dtype / dtype of the stored weights
};

/// Reads config.json (nested "rope_parameters" of transformers 5 and flat "rope_theta"/"rope_scaling" of 4 alike).
LlamaConfig read_llama_config(const std::filesystem::path& config_json);
/// NeMo's context/model.yaml of a zarr checkpoint directory, to the same structure.
LlamaConfig read_nemo_llama_config(const std::filesystem::path& model_yaml);
/// config.json that transformers 4 and 5 load.
std::string llama_config_json(const LlamaConfig& config);
/// The config of a model directory: config.json, else context/ of a NeMo zarr directory. ModelError when there is
/// neither.
LlamaConfig read_model_config(const std::filesystem::path& directory);

}  // namespace trireme
