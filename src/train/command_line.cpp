#include "trireme/train/command_line.h"

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/cli/interface.h"
#include "trireme/config/config.h"
#include "trireme/config/keys.h"
#include "trireme/plan/devices.h"
#include "trireme/train/training_program.h"
#include "trireme/version.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>

namespace trireme {

namespace {

std::vector<ProgramKeys> all_program_keys() {
  std::vector<ProgramKeys> all;
  for (const TrainingProgram& program : training_programs()) all.push_back(program.keys);
  return all;
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv, const TrainingProgram& program) {
  const std::string& name = program.keys.name;
  CommandLine line;
  bool version = false, help = false;
  std::string config;
  CLI::App app(fmt::format(
      "{} trains {}. It reads one YAML file (examples: {}); run it alone, under mpirun, or under srun with one process "
      "per rank.",
      name, program.trains, program.presets));
  app.name(name);
  app.formatter(help_formatter());
  app.set_help_flag();
  app.add_option("--config", config, "configuration file (YAML)")->type_name("FILE");
  app.add_option("--set", line.overrides, "override one key, any number of times: --set optimizer.lr=3e-4")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_flag("--dry-run", line.dry_run,
               "check everything, print the memory plan and the cost of a step; writes nothing");
  app.add_option("--ranks", line.ranks, "with --dry-run: plan for this many ranks")->check(CLI::Range(1, 1 << 20));
  app.add_option("--device", line.device,
                 "with --dry-run: plan for such GPUs, by their datasheets: " + join(device_words(), ", "))
      ->type_name("NAME")
      ->transform(CLI::IsMember(device_words(), CLI::ignore_case));
  app.add_option("--device-memory-gib", line.device_memory_gib,
                 "take at most so much memory of each GPU; with --dry-run: plan for GPUs with this much")
      ->check(CLI::Range(kLeastMemoryGib, kMostMemoryGib));
  app.add_option("--host-memory-gib", line.host_memory_gib,
                 "with --device or --device-memory-gib: memory of the host for each GPU (default 128)")
      ->check(CLI::Range(kLeastMemoryGib, kMostMemoryGib));
  app.add_flag("--print-config", line.print_config, "print the resolved configuration and stop");
  app.add_flag("--allow-fresh", line.allow_fresh,
               "start from the beginning if no checkpoint is whole, or all are gone");
  app.add_flag("--allow-changed-data", line.allow_changed_data,
               "resume although files changed: of data.train, the configuration of a trained model, a tokenizer");
  app.add_flag("--version", version, "print the version and stop");
  app.add_flag("-h,--help", help, "print this and every configuration key");
  refuse_odd_numbers(app);
  const std::string version_line = fmt::format("{} {} ({})", name, kVersion, kCommit);
  add_interface_option(
      app, {version_line, config_keys(program.keys), describe_config(program.keys), key_reference(all_program_keys())});
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success&) {
    line.handled = true;
    return line;
  } catch (const CLI::ParseError& error) {
    throw ConfigError(command_line_problem(app, argc, argv, error));
  }
  if (help) {
    std::printf("%sConfiguration keys:\n%s", app.help().c_str(), describe_config(program.keys).c_str());
    line.handled = true;
  } else if (version) {
    std::printf("%s\n", version_line.c_str());
    line.handled = true;
  } else if (config.empty()) {
    throw ConfigError(fmt::format("--config FILE is missing (see {} --help)", name));
  }
  const bool device = !line.device.empty();
  if (!line.dry_run && !line.handled && (line.ranks || device || line.host_memory_gib))
    throw ConfigError(fmt::format(
        "{} is for --dry-run: a run has the ranks and devices that it is started with (mpirun -n N, srun, torchrun)",
        line.ranks ? "--ranks"
        : device   ? "--device"
                   : "--host-memory-gib"));
  if (line.host_memory_gib && !line.device_memory_gib && !device)
    throw ConfigError("--host-memory-gib is for GPUs: give --device or --device-memory-gib, too");
  line.config = config;
  return line;
}

}  // namespace trireme
