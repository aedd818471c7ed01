#pragma once
// Private to train/: output.dir/checkpoints as rank 0 keeps it: commits checkpoints, removes old checkpoints, and
// checks the space on the disk.

#include "trireme/config/config.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"
#include "trireme/nn/unit.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

class CheckpointFolder {
 public:
  CheckpointFolder(std::filesystem::path path, std::string run_id, int64_t keep_last)
      : path_(std::move(path)), run_id_(std::move(run_id)), keep_last_(keep_last) {}
  const std::filesystem::path& path() const { return path_; }
  /// Makes the folder and removes what dead runs have left unfinished. WriteError.
  void open() const;
  /// The directory in which a save writes its files until all are complete.
  std::filesystem::path unfinished(int64_t step) const;
  /// Makes unfinished(step), empty. WriteError.
  void begin(int64_t step) const;
  /// Removes unfinished(step).
  void discard(int64_t step) const;
  /// Given the files of unfinished(manifest.step): writes the manifest, renames the directory, reads it back, then
  /// removes all but the newest keep_last checkpoints of this run. WriteError, which changes no older checkpoint.
  void commit(const CheckpointManifest& manifest) const;
  /// Whether a checkpoint of this run after step `step` lies there, whole by sizes and headers.
  bool holds(int64_t step) const;
  /// To step-N.damaged, with a warning: it is not counted as one of the newest, and later saves need its name.
  void move_aside(const std::filesystem::path& checkpoint) const;
  /// Whether it is of this run, or of none because it is not whole.
  bool may_move(const std::filesystem::path& checkpoint) const;

 private:
  void remove_old(int64_t committed) const;
  std::filesystem::path path_;
  std::string run_id_;
  int64_t keep_last_;
};

/// For rank 0, of a run of `world_size` ranks that trains `units`. `directory`: of the checkpoints, need not be there;
/// the space of the checkpoints of `run_id` is available to later checkpoints. WriteError when the checkpoints of
/// regular saves do not fit. Where only a stop by a signal would save and that does not fit: a warning. Otherwise
/// empty.
std::string check_checkpoint_space(const Config& config, const std::filesystem::path& directory,
                                   const std::string& run_id, const std::vector<UnitSpec>& units, int world_size);
/// For rank 0. `bytes`: TrainingTask::artefact_bytes(). WriteError when output.dir has no room for what the run writes
/// at its end.
void check_result_space(const Config& config, uint64_t bytes);

}  // namespace trireme
