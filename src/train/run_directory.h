#pragma once
// output.dir: who owns it, what is in it, and whether a run may start or go on there.

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme {

/// What null stands for in this run, as print_config() writes it: "precision.compute" -> "fp32".
using NullValues = std::map<std::string, std::string>;
/// Those that the program and the machine decide. `compute`: the type that the run computes in.
NullValues null_values(const ConfigFamily& family, at::ScalarType compute);

/// What the user allows on the command line, and what the configuration's nulls are.
struct ResumeChoices {
  bool allow_fresh = false, allow_changed_data = false;
  NullValues nulls = {};
};

class RunDirectory {
 public:
  /// Collective. Rank 0 creates the directory and takes its lock; files of a start that did not
  /// finish its first step are removed. A directory of a run with another configuration (the keys are named), of a
  /// finished run, or one that another process is training in is a WriteError on all ranks. Keys that do not decide
  /// what is computed may change (configuration_hash()), and train.max_steps may be raised, of a finished run that has
  /// a checkpoint too.
  RunDirectory(const Config& config, World& world, ResumeChoices choices = {});
  ~RunDirectory();
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  /// Made at the first start in this directory, kept by later ones.
  const std::string& run_id() const { return run_id_; }
  /// Whether checkpoints were there at the start, whole or not.
  bool has_checkpoints() const { return has_checkpoints_; }
  const ResumeChoices& choices() const { return choices_; }
  /// Makes the directory this run's: writes config.yaml and run.json. To be called when the first step has ended, and
  /// before anything is written that a later start needs; until then a start with a corrected configuration may use
  /// the directory. Does nothing the second time, and on other ranks than 0. WriteError.
  void claim();
  /// On rank 0: whether the directory is this run's.
  bool claimed() const { return !write_config_ && !write_identity_; }

 private:
  void open_as_rank_zero(const Config& config);
  void take_lock(const std::string& run_id);
  /// WriteError when this rank does not see, or cannot write, the directory that rank 0 has opened.
  void look_from_another_rank() const;
  std::filesystem::path path_;
  ResumeChoices choices_;
  int lock_ = -1;
  std::string run_id_, config_text_;
  bool has_checkpoints_ = false, write_config_ = false, write_identity_ = false;
};

/// Throws what RunDirectory would throw, and changes nothing. For rank 0 of a dry run.
void check_run_directory(const Config& config, const NullValues& nulls);

/// The run that an output.dir belongs to, from its run.json; empty: none. WriteError when that is damaged.
std::string known_run_id(const std::filesystem::path& output_dir);

/// Hash of the keys that decide what is computed. The others may differ between a run and its continuation: logging,
/// profile, output, parallel and eval as a whole, batch.micro_batch_size, train.on_nonfinite, train.on_spike,
/// train.max_time, and where model and data lie (their content is compared by fingerprints).
std::string configuration_hash(const Config& config);
/// The keys among them that differ: "optimizer.lr was 0.001, is 0.002". A default that is written out is no difference.
std::vector<std::string> deciding_changes(const Config& before, const Config& now, const NullValues& nulls = {});

}  // namespace trireme
