#pragma once
// The command line that all trainers share.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct TrainingProgram;

struct CommandLine {
  std::filesystem::path config;
  std::vector<std::string> overrides;  // "a.b.c=value"
  bool dry_run = false, print_config = false;
  bool allow_fresh = false;                 // start a new run if no checkpoint is whole
  bool allow_changed_data = false;          // resume although the training rows changed
  std::optional<int> ranks;                 // --dry-run: plan for that many ranks
  std::string device;                       // --dry-run: plan for such GPUs (device_words()); empty: none
  std::optional<double> device_memory_gib;  // --dry-run: plan for GPUs of this memory
  std::optional<double> host_memory_gib;    // --dry-run: memory of the host for each of these GPUs
  bool handled = false;                     // --help or --version has been printed
  int exit_code = 0;
};

/// ConfigError for unknown options (with the nearest known one) and missing values. --help prints the keys of
/// `program`.
CommandLine parse_command_line(int argc, char** argv, const TrainingProgram& program);

}  // namespace trireme
