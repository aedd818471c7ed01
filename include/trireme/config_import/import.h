#pragma once
// Configurations of other trainers as ours: fms-fsdp's command line (its HEAD, March 2024, and the AWS test case based
// on it), torchtitan's TOML (v0.2), the training configurations of NeMo's launcher (23.07 to HEAD). Every option has a
// line that says what it became or why it has no meaning here. Unknown options and missing features are a ConfigError
// with all problems.

#include "trireme/compose/compose.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// A decoder's shape, for a config.json; rope_theta and sizes follow fms-fsdp's or torchtitan's definition of the
/// variant.
struct ImportedModel {
  std::string name;  // model_type is gpt2 where gpt is true, else llama
  int64_t hidden_size = 0, heads = 0, kv_heads = 0, layers = 0, intermediate_size = 0, vocab_size = 0, positions = 0;
  double rope_theta = 10000;
  bool llama3_rope = false;  // Llama 3.1's scaling: factor 8, low and high frequency 1 and 4, of 8192 positions
  bool gpt = false;          // GPT-2 and GPT-3, which use the fields below
  bool gelu_erf = false;     // false: the tanh approximation
  double norm_eps = 1e-5, initializer_range = 0.02;
  double hidden_dropout = 0, attention_dropout = 0;
  std::optional<int64_t> bos = 1, eos = 2;  // Llama 2's
};

/// The facts that an importer needs of the tokenizer that the options name.
struct ImportedTokenizer {
  int64_t vocab_size = 0;  // largest id + 1
  std::optional<int64_t> bos, eos;
  std::vector<std::pair<std::filesystem::path, std::string>> files;  // each with its name beside a model's config.json
};
/// Reads a tokenizer's file or directory. Error if it is damaged; nullopt if it is absent.
using TokenizerReader = std::function<std::optional<ImportedTokenizer>(const std::filesystem::path&)>;

struct ImportedConfig {
  std::string yaml;                    // a complete configuration; relative paths start at its file
  std::optional<ImportedModel> model;  // nullopt: model.path names an existing model
  std::vector<std::pair<std::string, std::string>> report;  // option as given (or "default"), what it became
  std::string program = "train_llama";                      // the trainer of the configuration
  std::optional<ImportedTokenizer> tokenizer = {};          // to be copied beside the model's config.json
  std::string output_dir = {};                              // of NeMo's: output.dir
};

enum class FmsDialect { kHead, kMarch2024, kAws };

struct FmsImport {
  std::optional<FmsDialect> dialect;  // nullopt: from the names of the options
  int64_t ranks = 8;                  // batch_size counts per GPU there, the whole batch here
  std::filesystem::path base = {};    // as NemoImport's
};

/// `arguments`: "--model_name=llama2_7b", "--num-steps", "100", "--use_profiler": fire's and argparse's spellings,
/// dashes for underscores, "train_config.num_steps" for num_steps.
ImportedConfig import_fms(const std::vector<std::string>& arguments, const FmsImport& options);

/// `ranks`: for global_batch_size -1 and shard degree -1; `base`: as NemoImport's. The ids of BOS and EOS are those of
/// the tokenizer where `tokenizer` finds it.
ImportedConfig import_torchtitan(const std::filesystem::path& file, int64_t ranks, const std::filesystem::path& base,
                                 const TokenizerReader& tokenizer = {});

struct NemoImport {
  bool ignore_unknown = false;        // unknown keys get a line of the report instead of a problem
  std::filesystem::path base;         // relative paths become absolute from here; empty: they stay as they are
  std::optional<int64_t> vocab_size;  // of the tokenizer, in place of the size that its files or type give
  TokenizerReader tokenizer = {};     // empty: the files are not read
};

/// `training`: a resolved training configuration (ConfResolver), as conf/training/gpt3/126m.yaml; `source`: its name
/// in messages.
ImportedConfig import_nemo(const ConfNode& training, const std::string& source, const NemoImport& options);

}  // namespace trireme
