#pragma once
// Private to train/: output.dir: its owner, its content, and whether a run may start or resume there.

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace trireme {

/// The values that null means in this run, as print_config() writes them: "precision.compute" -> "fp32".
using NullValues = std::map<std::string, std::string>;
/// Those that the program, the model's config.json and the machine decide, for rank 0.
NullValues null_values(const Config& config, const ProgramKeys& program, bool gpu);

/// The user's options of the command line, and on rank 0 the values of the configuration's nulls.
struct ResumeChoices {
  bool allow_fresh = false, allow_changed_data = false;
  NullValues nulls = {};
};

class RunDirectory {
 public:
  /// Collective. Rank 0 creates the directory and takes its lock. Files of a start that did not finish its first step
  /// are removed. It is a WriteError on all ranks if the directory is that of a run with another configuration (the
  /// keys are named), that of a finished run, or one in which another process is training. Keys that do not decide what
  /// is computed may change (configuration_hash()). train.max_steps may be raised, for a finished run too if it has a
  /// checkpoint.
  RunDirectory(const Config& config, World& world, ResumeChoices choices = {});
  ~RunDirectory();
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  /// Made at the first start in this directory, and kept by later starts.
  const std::string& run_id() const { return run_id_; }
  /// Whether checkpoints were there at the start, whole or not.
  bool has_checkpoints() const { return has_checkpoints_; }
  /// The run has finished in this Slurm job, which was queued again since (SLURM_RESTART_COUNT).
  bool nothing_left() const { return nothing_left_; }
  const ResumeChoices& choices() const { return choices_; }
  /// Makes the directory this run's: writes config.yaml and run.json, removes what an earlier end says of it. To be
  /// called when the first step has ended, and before anything is written that a later start needs; until then a start
  /// with a corrected configuration may use the directory. Does nothing the second time, and on other ranks than 0.
  /// WriteError.
  void claim();
  /// Whether this process has called claim().
  bool claimed() const { return claimed_; }

 private:
  void open_as_rank_zero(const Config& config);
  /// Whether it has made the lock file.
  bool take_lock();
  void sign_lock() const;
  /// WriteError when this rank does not see, or cannot write, the directory whose lock rank 0 has taken as `owner`.
  void look_from_another_rank(const std::string& owner) const;
  std::filesystem::path path_;
  ResumeChoices choices_;
  int lock_ = -1;
  std::string run_id_, config_text_;
  bool has_checkpoints_ = false, nothing_left_ = false, write_config_ = false, write_identity_ = false,
       claimed_ = false;
};

/// SLURM_JOB_ID: the job that this process belongs to; empty: none.
std::string slurm_job();

/// Throws what RunDirectory would throw, and changes nothing. For rank 0 of a dry run.
void check_run_directory(const Config& config, const ResumeChoices& choices);

/// The run that an output.dir belongs to, from its run.json; empty: none. WriteError when that is damaged.
std::string known_run_id(const std::filesystem::path& output_dir);

/// Hash of the keys that decide what is computed. The others may differ between a run and its continuation: logging,
/// profile, output, parallel and eval as a whole, batch.micro_batch_size, train.on_nonfinite, train.on_spike,
/// train.max_time, and where model and data lie (their content is compared by fingerprints).
std::string configuration_hash(const Config& config);
/// The keys among them that differ: "optimizer.lr was 0.001, is 0.002". A default that is written out is no difference.
std::vector<std::string> deciding_changes(const Config& before, const Config& now, const NullValues& nulls = {});

}  // namespace trireme
