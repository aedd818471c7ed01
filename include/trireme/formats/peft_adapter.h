#pragma once
// PEFT LoRA directories: adapter_config.json + adapter_model.safetensors (reference: peft 0.10+, tuners/lora).

#include "trireme/formats/safetensors.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme {

struct AdapterConfig {
  std::string base_model;
  int64_t r = 0;
  double alpha = 0, dropout = 0;
  std::vector<std::string> target_modules;  // "q_proj", …
};

/// ModelError for what we lack, by name: DoRA, rank_pattern, alpha_pattern, bias, modules_to_save, rslora, other PEFT
/// types.
AdapterConfig read_adapter_config(const std::filesystem::path& directory);
std::string adapter_config_json(const AdapterConfig& config);

/// One LoRA pair for one Hugging Face module ("model.layers.0.self_attn.q_proj"). fp32 values, row-major.
struct AdapterPair {
  std::vector<float> a;  // [r, in]
  std::vector<float> b;  // [out, r]
  int64_t r = 0, in = 0, out = 0;
};

struct Adapter {
  AdapterConfig config;
  std::map<std::string, AdapterPair> modules;
};

/// Reads a PEFT directory; every module complete (A and B), shapes consistent with r.
Adapter read_adapter(const std::filesystem::path& directory);
/// Writes a PEFT directory that PeftModel.from_pretrained loads. `dtype` is the stored element type. Atomic per file,
/// config last.
void write_adapter(const std::filesystem::path& directory, const Adapter& adapter, DType dtype);

}  // namespace trireme
