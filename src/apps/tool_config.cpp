// `trireme config import`: configurations of other trainers as ours.
#include "tools.h"

#include "models/decoder/config.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/config/import.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

namespace {

struct ImportCommand {
  std::string output, dialect, file;
  std::vector<std::string> options;
  int64_t ranks = 8;
  bool force = false;
};

std::string config_json(const ImportedModel& model) {
  DecoderConfig config;
  config.hidden_size = model.hidden_size;
  config.intermediate_size = model.intermediate_size;
  config.num_hidden_layers = model.layers;
  config.num_attention_heads = model.heads;
  config.num_key_value_heads = model.kv_heads;
  config.head_dim = model.hidden_size / model.heads;
  config.vocab_size = model.vocab_size;
  config.max_position_embeddings = model.positions;
  config.norm_eps = 1e-5;
  config.rope_theta = model.rope_theta;
  config.dtype = "bfloat16";
  if (model.vocab_size == 128256) {
    config.bos_token_id = 128000;
    config.eos_token_ids = {128001};
  }
  return decoder_config_json(config);
}

void write(const std::filesystem::path& file, const std::string& content, bool force) {
  if (!force && std::filesystem::exists(file))
    throw WriteError(
        fmt::format("config import: {} is there already; choose another --output or add --force", file.string()));
  std::filesystem::create_directories(file.parent_path());
  write_file_atomic(file, content);
}

/// The report on stderr; the YAML on stdout, or as files below --output.
void finish(const ImportedConfig& imported, const ImportCommand& command) {
  for (const auto& [option, became] : imported.report)
    std::fprintf(stderr, "%s -> %s\n", option.c_str(), became.c_str());
  if (command.output.empty()) {
    std::fputs(imported.yaml.c_str(), stdout);
    if (imported.model)
      std::fputs("--output DIR writes this as DIR/config.yaml and the model's shape as DIR/model/config.json\n",
                 stderr);
    return;
  }
  const std::filesystem::path output = command.output;
  write(output / "config.yaml", imported.yaml, command.force);
  if (imported.model) write(output / "model" / "config.json", config_json(*imported.model), command.force);
  std::fprintf(stderr, "wrote %s%s\n", (output / "config.yaml").c_str(),
               imported.model ? fmt::format(" and {}", (output / "model" / "config.json").string()).c_str() : "");
}

std::optional<FmsDialect> dialect_of(const std::string& name) {
  if (name == "head") return FmsDialect::kHead;
  if (name == "2024") return FmsDialect::kMarch2024;
  if (name == "aws") return FmsDialect::kAws;
  return std::nullopt;
}

void add_common(CLI::App* tool, const std::shared_ptr<ImportCommand>& command) {
  tool->add_option("--output", command->output,
                   "Directory for config.yaml and model/config.json (default: YAML on stdout)");
  tool->add_option("--ranks", command->ranks, "GPUs of the run: batch sizes there count per GPU")
      ->check(CLI::Range(1, 1048576))
      ->capture_default_str();
  tool->add_flag("--force", command->force, "Replace files in --output");
}

}  // namespace

void add_config_tool(CLI::App& app) {
  CLI::App* config = app.add_subcommand("config", "Configurations")->require_subcommand(1);
  CLI::App* import =
      config->add_subcommand("import", "Another trainer's options as a configuration, with a line for each")
          ->require_subcommand(1);

  auto fms = std::make_shared<ImportCommand>();
  CLI::App* fms_tool = import->add_subcommand("fms", "fms-fsdp's options, after --: -- --model_variant=llama2_7b …");
  add_common(fms_tool, fms);
  fms_tool
      ->add_option("--dialect", fms->dialect, "Whose defaults: head, 2024 (March 2024) or aws (default: by the names)")
      ->check(CLI::IsMember({"head", "2024", "aws"}));
  // After "--" everything is positional.
  fms_tool->add_option("options", fms->options, "After --: fms-fsdp's options, --name=value");
  fms_tool->callback([fms] { finish(import_fms(fms->options, {dialect_of(fms->dialect), fms->ranks}), *fms); });

  auto titan = std::make_shared<ImportCommand>();
  CLI::App* titan_tool = import->add_subcommand("torchtitan", "torchtitan's TOML (v0.2)");
  add_common(titan_tool, titan);
  titan_tool->add_option("file", titan->file, "The TOML file")->required();
  titan_tool->callback([titan] { finish(import_torchtitan(titan->file, titan->ranks), *titan); });
}

}  // namespace trireme
