#pragma once
// Configurations of other trainers as ours: fms-fsdp's command line (its HEAD, March 2024, and the AWS test case made
// from that), torchtitan's TOML (v0.2). Nothing is passed over in silence: every option has a line that says what it
// became or why it means nothing here; an unknown one, and what we lack, is a ConfigError with all problems at once.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// A Llama's shape, for a config.json; rope_theta and sizes as fms-fsdp or torchtitan define the variant.
struct ImportedModel {
  std::string name;
  int64_t hidden_size = 0, heads = 0, kv_heads = 0, layers = 0, intermediate_size = 0, vocab_size = 0, positions = 0;
  double rope_theta = 10000;
};

struct ImportedConfig {
  std::string yaml;                                         // a whole configuration; relative paths count from its file
  std::optional<ImportedModel> model;                       // nullopt: model.path names an existing model
  std::vector<std::pair<std::string, std::string>> report;  // option as given (or "default"), what it became
};

enum class FmsDialect { kHead, kMarch2024, kAws };

struct FmsImport {
  std::optional<FmsDialect> dialect;  // nullopt: from the names of the options
  int64_t ranks = 8;                  // batch_size counts per GPU there, the whole batch here
};

/// `arguments`: "--model_name=llama2_7b", "--num-steps", "100", "--use_profiler": fire's and argparse's spellings,
/// dashes for underscores, "train_config.num_steps" for num_steps.
ImportedConfig import_fms(const std::vector<std::string>& arguments, const FmsImport& options);

/// `ranks`: for global_batch_size -1 and shard degree -1.
ImportedConfig import_torchtitan(const std::filesystem::path& file, int64_t ranks);

}  // namespace trireme
