#pragma once
// Hugging Face config.json of LlamaForCausalLM, read strictly: what it asks and we lack is refused by name
// (ModelError).

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct RopeScaling {
  enum class Type { kNone, kLinear, kLlama3 } type = Type::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  int64_t original_max_position = 8192;                  // llama3
};

/// Shape of a Llama: every field under the name that config.json gives it.
struct DecoderConfig {
  int64_t hidden_size = 0, intermediate_size = 0, num_hidden_layers = 0;
  int64_t num_attention_heads = 0, num_key_value_heads = 0, head_dim = 0;
  int64_t vocab_size = 0, max_position_embeddings = 0;
  double rms_norm_eps = 1e-6, rope_theta = 10000.0, initializer_range = 0.02;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  std::optional<int64_t> bos_token_id = 1, pad_token_id;
  std::vector<int64_t> eos_token_ids = {2};  // each ends a text
  std::string dtype = "float32";             // torch_dtype / dtype of the stored weights
};

/// Reads config.json as transformers 5 does: rope_scaling, where it is there and not empty, takes the place of
/// rope_parameters; rope_theta beside them counts where neither holds one. A special token that is null is none; one
/// that is absent has the default.
DecoderConfig read_decoder_config(const std::filesystem::path& config_json);
/// NeMo's context/model.yaml (NeMo 1: model_config.yaml) of a zarr checkpoint directory, to the same structure.
DecoderConfig read_nemo_config(const std::filesystem::path& model_yaml);
/// config.json that transformers 4 and 5 load.
std::string decoder_config_json(const DecoderConfig& config);
/// Ids that end a text: those of generation_config.json, where the directory has one that names some, as transformers'
/// generate() takes them; else the config's.
std::vector<int64_t> end_of_text_ids(const std::filesystem::path& directory, const DecoderConfig& config);
/// generation_config.json with the config's special tokens.
std::string generation_config_json(const DecoderConfig& config);
/// The config of a model directory: config.json, else that of a NeMo zarr directory. ModelError when there is
/// neither.
DecoderConfig read_model_config(const std::filesystem::path& directory);

}  // namespace trireme
