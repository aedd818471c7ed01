// `trireme launch`: NeMo launcher's configurations as Slurm jobs.
#include "imported_model.h"
#include "tools.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/launcher/launcher.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <vector>

namespace trireme {

namespace {

struct LaunchCommand {
  std::string config;
  std::vector<std::string> overrides;
  bool ignore_unknown = false;
  std::optional<int64_t> vocab_size;
};

void write_stage(const LaunchStage& stage) {
  make_directories(stage.folder / "results");
  for (const auto& [file, content] : stage.files) write_file_atomic(file, content);
  for (const auto& [file, content] : imported_model_files(stage.imported, stage.model_directory)) {
    make_directories(stage.model_directory);
    write_file_atomic(file, content);
  }
  std::printf("Job %s submission file created at '%s'\n", stage.job_name.c_str(), stage.submission.c_str());
}

/// The number in "Submitted batch job 123".
std::string job_number(const std::string& output) {
  std::smatch found;
  if (!std::regex_search(output, found, std::regex("job ([0-9]+)")))
    throw WriteError(fmt::format("sbatch says '{}', which names no job", output));
  return found[1];
}

/// Submits or runs the stage; the job's number, "" of an interactive one.
std::string start_stage(const LaunchStage& stage, bool debug) {
  if (debug) {
    const std::string fake = std::to_string(10000 + std::random_device()() % 90000);
    std::printf("[DEBUG] Job %s submitted with FAKE Job ID %s\n", stage.job_name.c_str(), fake.c_str());
    return fake;
  }
  std::fflush(stdout);
  if (stage.interactive) {
    const auto [code, stopped] = run_group({"bash", stage.submission.string()});
    const std::string ends = fmt::format("its last lines, and the log in {},", stage.folder.string());
    if (code != 0)
      throw Error(static_cast<ExitCode>(code),
                  fmt::format("{} ended with exit code {}: {}", stage.submission.string(), code,
                              stopped ? "a signal stopped it while it loaded, or " + ends + " say which steps are lost"
                                      : ends + " say why"));
    std::clearerr(stdout);  // tee has said what it could not print, and the run is whole
    return "";
  }
  const CommandResult sbatch = run_command({"sbatch", stage.submission.string()});
  if (sbatch.code != 0)
    throw WriteError(fmt::format("sbatch {} ended with exit code {}: what it says stands above",
                                 stage.submission.string(), sbatch.code));
  const std::string number = job_number(sbatch.output);
  write_file_atomic(stage.folder / "launcher.log", "Submitted batch job " + number);
  std::printf("Job %s submitted with Job ID %s\n", stage.job_name.c_str(), number.c_str());
  return number;
}

void launch(const LaunchCommand& command) {
  LauncherSettings settings = launcher_settings();
  settings.ignore_unknown = command.ignore_unknown;
  settings.vocab_size = command.vocab_size;
  settings.tokenizer = read_imported_tokenizer;
  const bool debug = settings.debug;
  const Launcher launcher(command.config, command.overrides, settings);
  for (const std::string& note : launcher.notes()) std::fprintf(stderr, "note: %s\n", note.c_str());
  std::string dependency;
  for (size_t i = 0; i < launcher.stages(); ++i) {
    const LaunchStage stage = launcher.stage(i, dependency);
    write_stage(stage);
    write_file_atomic(stage.folder / "launcher_cmd.log", join(command_line_words(), " \\\n  "));
    const std::string number = start_stage(stage, debug);
    if (!number.empty()) dependency = "afterany:" + number;
  }
}

}  // namespace

void add_launch_tool(CLI::App& app) {
  auto command = std::make_shared<LaunchCommand>();
  CLI::App* tool =
      app.add_subcommand("launch", "Start runs as NeMo's launcher does: a Slurm job for each stage of CONFIG");
  tool->footer(
      "trireme launch scripts/launch/conf/config.yaml stages=[training] training=gpt3/126m "
      "training.trainer.num_nodes=2\n"
      "NEMO_LAUNCHER_DEBUG=1 writes all files and submits nothing. docs/howto/launch.md says more.");
  tool->add_option("config", command->config, "config.yaml with a defaults list")->required();
  tool->add_option("overrides", command->overrides, "a.b=c, +new=v, ++a=b, ~key, group=choice");
  tool->add_flag("--ignore-unknown", command->ignore_unknown, "Ignore unknown keys of the training configuration");
  tool->add_option("--vocab-size", command->vocab_size, "Vocabulary of the tokenizer, where its files are not here")
      ->check(CLI::Range(1, 1 << 30));
  tool->callback([command] { launch(*command); });
}

}  // namespace trireme
