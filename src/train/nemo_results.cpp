#include "nemo_results.h"

#include "collective_check.h"
#include "trireme/base/append_file.h"
#include "trireme/base/error.h"
#include "trireme/base/file.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/version.h"

#include <fmt/format.h>

#include <system_error>
#include <vector>

namespace trireme {

namespace {

constexpr const char *kCommandFile = "cmd-args.log", *kGitFile = "git-info.log", *kParametersFile = "hparams.yaml",
                     *kErrorFile = "nemo_error_log.txt", *kLightningFile = "lightning_logs.txt";

/// NeMo's names for what earlier runs of a folder have left: run_0, run_1, ...
std::filesystem::path next_run_folder(const std::filesystem::path& output) {
  for (int run = 0;; ++run)
    if (const auto folder = output / fmt::format("run_{}", run); !std::filesystem::exists(folder)) return folder;
}

void move_earlier_files(const std::filesystem::path& output) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(output))
    if (entry.is_regular_file() && is_results_file(entry.path().filename().string())) files.push_back(entry.path());
  if (files.empty()) return;
  const std::filesystem::path folder = next_run_folder(output);
  make_directories(folder);
  for (const auto& file : files) {
    std::error_code error;
    std::filesystem::rename(file, folder / file.filename(), error);
    if (error)
      throw WriteError(fmt::format("cannot move {} to {}: {}", file.string(), folder.string(), error.message()));
  }
  log_info(fmt::format("log files of the start before are in {}", folder.string()));
}

}  // namespace

bool is_results_file(const std::string& name) {
  for (const char* known : {kCommandFile, kGitFile, kParametersFile, kErrorFile, kLightningFile})
    if (name == known) return true;
  return name.starts_with("events.out.tfevents.") ||
         (name.starts_with("nemo_log_globalrank-") && name.ends_with(".txt"));
}

void open_nemo_results(const Config& config, World& world) {
  const std::filesystem::path output = config.output.dir;
  const int rank = world.communicator().rank();
  collective_check(world.communicator(), [&] {
    if (rank != 0) return;
    move_earlier_files(output);
    write_file_atomic(output / kCommandFile, join(command_line_words(), " "));
    write_file_atomic(output / kGitFile, fmt::format("commit hash: {}\n", kCommit));
    write_file_atomic(output / kParametersFile, print_config(config));
  });
  collective_check(world.communicator(), [&] {
    add_log_file(output / fmt::format("nemo_log_globalrank-{}_localrank-{}.txt", rank, world.launch().local_rank),
                 LogFile::kAll);
    if (rank == 0) add_log_file(output / kErrorFile, LogFile::kWarnings);
  });
  const int ranks = world.communicator().size();
  if (rank == 0)
    write_lightning_log(output, fmt::format("distributed_backend={}, {} process{}", world.communicator().backend(),
                                            ranks, ranks == 1 ? "" : "es"));
}

void write_lightning_log(const std::filesystem::path& output, const std::string& text) {
  try {
    AppendFile file("lines");
    file.open(output / kLightningFile, /*append=*/true);
    file.write(text + '\n');
  } catch (const Error& error) {
    log_warn(error.what());
  }
}

}  // namespace trireme
