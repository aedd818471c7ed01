#pragma once
// The options of LoRA under peft's names, and the rules by which they choose modules: those of peft 0.21.
// Configuration, adapter files and models share them. A module is named by its path in the model,
// "model.layers.0.self_attn.q_proj".

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// A choice of modules.
struct ModuleSelector {
  std::vector<std::string> names;  // whole paths, or their ends after a dot: "q_proj", "layers.3.mlp.up_proj"
  std::string pattern = {};        // in place of names: a regular expression of whole paths, or kAllLinear

  static constexpr const char* kAllLinear = "all-linear";  // every product of the blocks, not the output matrix
  bool all_linear() const;
  bool empty() const { return names.empty() && pattern.empty(); }
  bool operator==(const ModuleSelector&) const = default;
};

struct LoraOptions {
  int64_t r = 16;
  double alpha = 32, dropout = 0.1;
  /// Modules inside of the blocks, or qkv_proj: one fused adapter over q, k, v.
  ModuleSelector target_modules = {{"q_proj", "k_proj", "v_proj", "o_proj"}};
  ModuleSelector exclude_modules = {};
  std::vector<int64_t> layers_to_transform = {};  // blocks whose modules target_modules' names mean; empty: all
  bool use_rslora = false;                        // the scale is alpha / sqrt(r), not alpha / r
  /// Rank and alpha of modules whose path a key matches: a regular expression of the path or of its end after a dot.
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  /// DoRA (Liu et al. 2024): row j of the adapted weight is m_j v_j / |v_j|, v = W + scale B A, with a trained m.
  bool use_dora = false;
  enum class Bias {
    kNone,
    kAll,
    kLoraOnly
  } bias = Bias::kNone;  // biases that are trained: none, all, of adapted modules
  /// Modules with a row for each token that are trained whole, by name: the embedding, the output matrix.
  std::vector<std::string> modules_to_save = {};
  bool ensure_weight_tying = false;  // a tied output matrix is the embedding also where the embedding is trained
  /// Rows of such modules that are trained, by the module's name; "" is the input embedding.
  std::vector<std::pair<std::string, std::vector<int64_t>>> trainable_token_indices = {};
  bool operator==(const LoraOptions&) const = default;
};

/// Why `pattern` is not supported; empty: it is. Patterns mean here what they mean in Python's re: what the two would
/// read in different ways is not supported.
std::string pattern_problem(const std::string& pattern);

/// Whether `module` is among the selected ones. ConfigError for a pattern with a problem.
bool selects(const ModuleSelector& selector, const std::string& module);
/// Whether a module is trained whole.
bool is_saved(const LoraOptions& lora, const std::string& module);
/// Whether lora.exclude_modules names the module. ConfigError as above.
bool is_excluded(const LoraOptions& lora, const std::string& module);
/// Whether a module of a block, or the embedding, gets an adapter. ConfigError for a pattern with a problem.
bool is_targeted(const LoraOptions& lora, const std::string& module);

/// Whether a key of rank_pattern or alpha_pattern means the module.
bool key_matches(const std::string& key, const std::string& module);
/// A module's rank and the factor of its adapter's output. ConfigError where keys of a pattern give it different
/// values: peft takes the first, and its files do not keep their order.
struct LoraStrength {
  int64_t r = 0;
  double alpha = 0, scale = 0;
  bool operator==(const LoraStrength&) const = default;
};
LoraStrength strength_of(const LoraOptions& lora, const std::string& module);

}  // namespace trireme
