// `trireme config import`: configurations of other trainers as ours.
#include "imported_model.h"
#include "tools.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/compose/compose.h"
#include "trireme/config_import/import.h"
#include "trireme/launcher/launcher.h"

#include <fmt/format.h>

#include <algorithm>
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
  std::optional<int64_t> vocab_size;
  bool force = false, ignore_unknown = false;
};

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
  auto files = imported_model_files(imported, output / "model");
  files.emplace_back(output / "config.yaml", imported.yaml);
  for (const auto& [file, content] : files) {
    if (std::filesystem::is_directory(file))
      throw WriteError(fmt::format("config import: {} is a directory; choose another --output", file.string()));
    if (!command.force && std::filesystem::exists(file))
      throw WriteError(
          fmt::format("config import: {} is there already; choose another --output or add --force", file.string()));
  }
  // Of two tokenizers the earlier one might be read.
  const auto is_ours = [&](const std::filesystem::path& file) {
    return std::ranges::any_of(imported.tokenizer->files,
                               [&](const auto& ours) { return file.filename() == ours.second; });
  };
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"})
    if (const auto file = output / "model" / name;
        imported.tokenizer && std::filesystem::exists(file) && !is_ours(file))
      throw WriteError(
          fmt::format("config import: {} is another tokenizer beside the one to be written: remove it", file.string()));
  for (const auto& [file, content] : files) make_directories(file.parent_path());
  for (const auto& [file, content] : files) write_file_atomic(file, content);
  std::fprintf(stderr, "wrote %s%s\n", (output / "config.yaml").c_str(),
               imported.model ? fmt::format(" and {}", (output / "model" / "config.json").string()).c_str() : "");
}

std::optional<FmsDialect> dialect_of(const std::string& name) {
  if (name == "head") return FmsDialect::kHead;
  if (name == "2024") return FmsDialect::kMarch2024;
  if (name == "aws") return FmsDialect::kAws;
  return std::nullopt;
}

/// conf/training/gpt3/126m.yaml -> conf/config.yaml and gpt3/126m; empty where the file lies elsewhere.
std::pair<std::filesystem::path, std::string> primary_of(const std::filesystem::path& file) {
  const std::filesystem::path whole = std::filesystem::absolute(file).lexically_normal();
  for (std::filesystem::path at = whole.parent_path(); at.has_relative_path(); at = at.parent_path())
    if (at.filename() == "training" && std::filesystem::exists(at.parent_path() / "config.yaml"))
      return {at.parent_path() / "config.yaml", whole.lexically_relative(at).replace_extension().string()};
  return {};
}

/// A training configuration, a whole config.yaml (with its defaults list), or a cluster's. A training configuration
/// names keys of config.yaml: they have these values unless an override gives others.
void import_nemo_file(const ImportCommand& command) {
  ConfProblems problems;
  const ConfNode file = read_conf_file(command.file, problems);
  problems.throw_if_any(command.file);
  if (file.find("srun_args") != nullptr || file.find("gpus_per_node") != nullptr) {
    for (const auto& [option, became] : describe_cluster(file))
      std::fprintf(stderr, "%s -> %s\n", option.c_str(), became.c_str());
    return;
  }
  Composition composition;
  std::vector<std::string> overrides = command.options;
  for (std::string& one : overrides) {
    // model.x=y is short for training.model.x=y, also where a file of the defaults list has the section.
    const size_t at = one.find_first_not_of("+~");
    if (at == std::string::npos || file.find("stages") != nullptr) continue;
    const std::string first = one.substr(at, one.find_first_of(".=", at) - at);
    const std::vector<std::string> sections = {"run", "trainer", "exp_manager", "model", "s3_checkpointing"};
    if (file.find(first) != nullptr || std::find(sections.begin(), sections.end(), first) != sections.end())
      one.insert(at, "training.");
    else if (at > 0 && first != "training")
      throw ConfigError(
          fmt::format("{}: '{}' adds a key beside the training file, where nothing reads it: its sections are {}; what "
                      "the launcher alone reads (env_vars, cluster) is for trireme launch",
                      command.file, one, fmt::join(sections, ", ")));
  }
  const auto [primary, choice] = primary_of(command.file);
  if (file.find("stages") != nullptr) {
    composition = compose(command.file, overrides, problems);
  } else if (!primary.empty()) {
    overrides.push_back("training=" + choice);
    composition = compose(primary, overrides, problems);
    ConfNode* path = composition.root.find("launcher_scripts_path");
    if (path != nullptr && path->text == "???") path->text = ".";
  } else {
    if (const ConfNode* defaults = file.find("defaults"))
      for (const ConfNode& item : defaults->items)
        if (item.is(ConfNode::Kind::kText)
                ? item.text != "_self_"
                : item.is(ConfNode::Kind::kMap) && !item.entries.front().value.is(ConfNode::Kind::kNull))
          problems.add(item.place,
                       "a file of the defaults list: leave the file in its conf folder, beside config.yaml");
    ConfNode& root = composition.root;
    root.at_or_add("training") = file;
    composition.section = "training";  // NeMo's own files name keys from their root
    for (const auto& [key, value] :
         {std::pair("launcher_scripts_path", "."), {"data_dir", "data"}, {"base_results_dir", "results"}})
      root.at_or_add(key) = ConfNode(std::string(value));
    apply_overrides(root, overrides, problems);
  }
  problems.throw_if_any(command.file);
  const auto training = ConfResolver(composition, problems).at("training");
  problems.throw_if_any(command.file);
  if (!training) throw ConfigError(fmt::format("{}: has no 'training'", command.file));
  finish(import_nemo(
             *training, command.file,
             {command.ignore_unknown, std::filesystem::current_path(), command.vocab_size, read_imported_tokenizer}),
         command);
}

void add_common(CLI::App* tool, const std::shared_ptr<ImportCommand>& command) {
  tool->add_option("--output", command->output,
                   "Directory for config.yaml and model/config.json (default: YAML on stdout)");
  tool->add_option("--ranks", command->ranks, "GPUs of the run, where the other trainer's batch size counts per GPU")
      ->check(CLI::Range(1, 1048576))
      ->capture_default_str();
  tool->add_flag("--force", command->force, "Replace files in --output");
}

}  // namespace

void add_config_tool(CLI::App& app) {
  CLI::App* config = app.add_subcommand("config", "Configurations of other trainers: import")->require_subcommand(1);
  CLI::App* import =
      config
          ->add_subcommand("import",
                           "Write another trainer's options as a configuration, and say on stderr what became of each")
          ->require_subcommand(1);

  auto fms = std::make_shared<ImportCommand>();
  CLI::App* fms_tool = import->add_subcommand("fms", "fms-fsdp's options, after --: -- --model_variant=llama2_7b …");
  add_common(fms_tool, fms);
  fms_tool
      ->add_option("--dialect", fms->dialect, "Whose defaults: head, 2024 (March 2024) or aws (default: by the names)")
      ->check(CLI::IsMember({"head", "2024", "aws"}));
  // After "--" everything is positional.
  fms_tool->add_option("options", fms->options, "After --: fms-fsdp's options, --name=value");
  fms_tool->callback([fms] {
    finish(import_fms(fms->options, {dialect_of(fms->dialect), fms->ranks, std::filesystem::current_path()}), *fms);
  });

  auto titan = std::make_shared<ImportCommand>();
  CLI::App* titan_tool = import->add_subcommand("torchtitan", "torchtitan's TOML (v0.2)");
  add_common(titan_tool, titan);
  titan_tool->add_option("file", titan->file, "The TOML file")->required();
  auto nemo = std::make_shared<ImportCommand>();
  CLI::App* nemo_tool = import->add_subcommand(
      "nemo", "NeMo launcher's YAML: conf/training/gpt3/126m.yaml, conf/config.yaml or conf/cluster/bcm.yaml");
  nemo_tool->add_option("--output", nemo->output,
                        "Directory for config.yaml and model/config.json (default: YAML on stdout)");
  nemo_tool->add_flag("--force", nemo->force, "Replace files in --output");
  nemo_tool->add_flag("--ignore-unknown", nemo->ignore_unknown, "Report unknown keys instead of refusing them");
  nemo_tool
      ->add_option("--vocab-size", nemo->vocab_size, "Vocabulary of the tokenizer, where its type does not tell it")
      ->check(CLI::Range(1, 1 << 30));
  nemo_tool->add_option("file", nemo->file, "The YAML file")->required();
  nemo_tool->add_option("overrides", nemo->options, "a.b=c, +new=v, ~key");
  nemo_tool->callback([nemo] { import_nemo_file(*nemo); });

  titan_tool->callback([titan] {
    finish(import_torchtitan(titan->file, titan->ranks, std::filesystem::current_path(), read_imported_tokenizer),
           *titan);
  });
}

}  // namespace trireme
