#pragma once
// PEFT LoRA directories: adapter_config.json + adapter_model.safetensors (reference: peft 0.10+, tuners/lora).

#include "trireme/base/lora.h"
#include "trireme/formats/huggingface/safetensors.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme {

struct AdapterConfig {
  std::string base_model;
  LoraOptions lora = {};  // without trainable_token_indices
  /// trainable_token_indices: rows of "model.embed_tokens" or "lm_head" that the adapter replaces, in the order of the
  /// file.
  std::map<std::string, std::vector<int64_t>> token_indices = {};
};

/// Reads adapter_config.json by the fields of peft 0.21's LoraConfig. ModelError names each unsupported value that
/// changes what the adapter computes (aLoRA, initialisations that change the base …), and each unknown field, unless
/// its value is null, false, "none" or empty.
AdapterConfig read_adapter_config(const std::filesystem::path& directory);
std::string adapter_config_json(const AdapterConfig& config);

/// The matrices A and B of one Hugging Face module ("model.layers.0.self_attn.q_proj"). fp32 values, row-major.
struct AdapterPair {
  std::vector<float> a;  // [r, in]
  std::vector<float> b;  // [out, r]
  int64_t r = 0, in = 0, out = 0;
  std::vector<float> magnitude = {};  // [out], of DoRA
  bool embedding = false;             // in: the rows of the embedding
};

/// A tensor that replaces the base model's.
struct SavedTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// Rows of an embedding or output matrix that replace the base model's.
struct TokenRows {
  std::vector<int64_t> ids;   // ascending
  std::vector<float> values;  // [ids, columns]
  int64_t columns = 0;
  bool operator==(const TokenRows&) const = default;
};

struct Adapter {
  AdapterConfig config;
  std::string base_hash;  // of the base model's files, from the metadata of the tensors' file; empty: unknown
  std::map<std::string, AdapterPair> modules;
  /// Keys as in config.token_indices. Also whole matrices that peft has put into the file because the vocabulary was
  /// resized.
  std::map<std::string, TokenRows> token_rows;
  /// "lm_head.weight" of modules_to_save, and the biases that are trained, by their names in the base model.
  std::map<std::string, SavedTensor> saved = {};
  /// "model.embed_tokens.weight" of the base model, which peft puts into the file of an adapter of the embedding, in
  /// values of base_type.
  std::map<std::string, SavedTensor> base = {};
  DType base_type = DType::kF32;
};

/// Reads a PEFT directory; every module complete (A and B), named by target_modules, shapes consistent with its rank.
Adapter read_adapter(const std::filesystem::path& directory);
/// Writes a PEFT directory that PeftModel.from_pretrained loads. `dtype` is the stored element type. Atomic per file,
/// config last.
void write_adapter(const std::filesystem::path& directory, const Adapter& adapter, DType dtype);

}  // namespace trireme
