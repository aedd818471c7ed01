#pragma once
// Private to apps/: common parts of `trireme init-model`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct InitModelOptions {
  std::string preset, config, output, tokenizer, dtype;
  std::optional<int64_t> hidden_size, layers, heads, kv_heads, head_dim, intermediate_size, vocab_size, max_positions;
  bool tie = false, force = false, config_only = false;
  uint64_t seed = 0;
};

/// ConfigError for a size below 1 or above ConfigReader::kMaxInteger.
void check_sizes(const InitModelOptions& options);

/// Shapes of BERT for --preset.
std::vector<std::string> bert_preset_names();
/// True if --preset or --config names a BERT.
bool asks_for_bert(const InitModelOptions& options);
/// Writes a BERT with random weights: matrices and embeddings normal with the configuration's initializer_range, biases
/// 0, norms 1. ConfigError, ModelError, WriteError.
void init_bert(const InitModelOptions& options);

}  // namespace trireme
