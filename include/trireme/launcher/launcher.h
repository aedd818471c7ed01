#pragma once
// `trireme launch`: a NeMo launcher's configuration as Slurm jobs of the native trainers.

#include "trireme/compose/compose.h"
#include "trireme/config_import/import.h"

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// Settings of the launcher beside the configuration.
struct LauncherSettings {
  bool debug = false;           // NEMO_LAUNCHER_DEBUG: files are written, nothing is submitted
  bool ci = false;              // NEMO_LAUNCHER_CI: the job's log is slurm_%j.out
  bool memory_measure = false;  // NEMO_LAUNCHER_MEMORY_MEASURE: nvidia-smi beside the run
  bool in_allocation = false;   // SLURM_JOB_ID: interactive runs start with srun
  bool ignore_unknown = false;
  std::optional<int64_t> vocab_size = {};  // --vocab-size (NemoImport::vocab_size)
  TokenizerReader tokenizer = {};
  std::filesystem::path programs;   // the folder of train_gpt and train_llama
  std::string program;              // TRIREME_PROGRAM: started in place of these
  std::filesystem::path directory;  // relative paths start here
  std::string time_tag;             // of the log of an interactive run: 1122_224310
};
/// From the environment and the place of this program.
LauncherSettings launcher_settings();

/// One stage, ready to be written and started.
struct LaunchStage {
  std::string name, job_name;        // "training", "nemo-megatron-gpt3_126m"
  std::filesystem::path folder;      // run.results_dir
  std::filesystem::path submission;  // the script, one of `files`
  bool interactive = false;          // else sbatch
  std::vector<std::pair<std::filesystem::path, std::string>> files;
  ImportedConfig imported;                // its YAML is one of `files`
  std::filesystem::path model_directory;  // folder of imported.model
};

/// The stages of a configuration.
class Launcher {
 public:
  /// Reads and checks everything; ConfigError with all problems.
  Launcher(const std::filesystem::path& config, const std::vector<std::string>& overrides, LauncherSettings settings);
  size_t stages() const { return stages_.size(); }
  /// `dependency`: "afterany:123" of the stage before; empty: run.dependency.
  LaunchStage stage(size_t index, const std::string& dependency) const;
  /// Lines for the user: ignored parts of the configuration, with reasons.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct JobParts;
  /// `continues`: an earlier stage may have finished the run.
  JobParts job_parts(const ConfNode& training, const std::string& dependency, bool continues) const;
  void check_cluster(ConfProblems& problems);
  /// Notes a time limit of Slurm that ends the run before it stops by itself.
  void note_time_limit();
  std::string mounts(const std::filesystem::path& program) const;
  std::string absolute(const std::string& path) const;

  LauncherSettings settings_;
  std::string source_;
  ConfNode root_;      // the keys that the launcher reads, interpolated
  ConfNode training_;  // interpolated
  std::vector<std::string> stages_, notes_;
  ImportedConfig imported_;
};

/// conf/cluster/bcm.yaml: what each key becomes.
std::vector<std::pair<std::string, std::string>> describe_cluster(const ConfNode& cluster);

struct CommandResult {
  int code = 0;  // 128 + the signal that ended it
  std::string output;
};
/// Runs a program with this process's stdin and stderr. WriteError if it cannot start.
CommandResult run_command(const std::vector<std::string>& arguments);

struct GroupResult {
  int code = 0;          // as above
  bool stopped = false;  // a signal to this process ended the command before it handled it
};
/// Runs a program in a process group of its own, without stdin, and waits for the whole group. It gets SIGUSR1 for
/// signals that would have ended this process, stops and goes on with it, and gets SIGTERM when it is killed.
GroupResult run_group(const std::vector<std::string>& arguments);

}  // namespace trireme
