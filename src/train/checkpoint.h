#pragma once
// Private to train/: saving and resuming the whole state of a run.
//
// A save: the state is copied to host memory (all that the step waits for), a writer thread of each rank writes its
// file below step-N.tmp-RUN. When all have finished, which the steps' all-reduce of statistics tells, rank 0 writes the
// manifest, renames the directory, reads it back and then removes the oldest. A save that fails changes no older one;
// kMaxFailures in a row end the run with exit code 73.

#include "checkpoint_writer.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/config/config.h"
#include "trireme/formats/checkpoint/training_checkpoint.h"
#include "trireme/nn/unit.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trireme {

/// "master.layers.0" (this rank's shard of a unit's vector) or "loss_scale" (a scalar, equal on all ranks); the tensors
/// themselves.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Small numbers of the training loop that a checkpoint keeps; `numbers`: those of its parts, by name.
struct LoopState {
  int64_t completed_steps = 0, evaluations = 0;
  std::map<std::string, std::vector<double>> numbers;
  std::optional<Config> config = {};  // resume() only: of the run that saved it; none: format version 1
};

struct CheckpointOptions {
  RankGrid grid;  // with shard groups as the trained state is divided
  int64_t keep_last = 2;
  std::string run_id, config, config_hash, compute_dtype;
  int64_t seed = 0, tokens_per_sample = 1;
  std::function<int64_t(int64_t steps)> samples_after;  // samples of the first so many steps
  std::vector<Fingerprint> data, base;                  // rank 0's count
  bool allow_fresh = false;                             // start afresh where no checkpoint is whole
  bool allow_changed_data = false;                      // resume on other training rows
  std::map<std::string, std::string> nulls = {};        // ResumeChoices::nulls
};

class Checkpoints {
 public:
  /// `event`: takes one JSON object for metrics.jsonl; called on rank 0.
  Checkpoints(std::filesystem::path directory, Communicator& comm, const std::vector<UnitSpec>& units,
              CheckpointOptions options, std::function<void(const std::string&)> event);
  ~Checkpoints();

  /// Collective. Fills the tensors from the newest whole checkpoint of this run. Each newer one is skipped with a
  /// warning that says why, and moved aside to step-N.damaged. No checkpoint: nullopt. None whole: ModelError; other
  /// training data: DataError.
  std::optional<LoopState> resume(const NamedTensors& state);

  /// Collective. Makes the directory and removes unfinished checkpoints that dead runs have left in it.
  void open();

  /// For runs with regular saves: allocates the host memory of the copies in the background, while the run is loaded.
  void prepare(const NamedTensors& state) { writer_.prepare(pieces(state)); }
  /// Collective. Waits for the save under way, copies the state, starts writing. Throws as advance_if_ready().
  void start(const NamedTensors& state, const LoopState& loop);
  /// Whether this rank has finished the phase of the save that is under way (0 or 1): summed over ranks in the step's
  /// all-reduce.
  double ready() const;
  /// Collective. Given the sum of ready() that step `step` carried and the last step begun: moves the save on when
  /// every rank is ready. Throws CollectiveError after kMaxFailures failed saves in a row.
  void advance_if_ready(int64_t step, int64_t last_begun, double sum);
  /// Collective. Waits until no save is under way. Never throws for a failed save.
  void complete();
  /// Collective. Whether a checkpoint of this run after step `step` lies there, whole by sizes and headers.
  bool holds(int64_t step);
  /// The step of the newest checkpoint that this process has committed or gone on from; -1: none.
  int64_t committed() const { return committed_step_; }

  static constexpr int kMaxFailures = 3;

 private:
  enum class Phase { kIdle, kWriting, kCommitting };
  struct Placement {
    int64_t begin = 0;  // first element of the unit that this rank's shard holds
    int64_t numel = 0;  // elements of the unit, without a shard size's padding
    int64_t shard_numel = 0;
    int copy = 0, copies = 1;  // which of the ranks that hold the same shard this is
  };
  std::vector<PieceSource> pieces(const NamedTensors& state) const;
  std::vector<CheckpointUnit> described_units() const;
  void advance();
  bool failed_anywhere(const std::string& problem);
  void failed(const std::string& reason);
  void give_up_after_failures() const;
  void commit(const std::vector<std::string>& descriptions);
  void retain(int64_t committed);
  void move_aside(const std::filesystem::path& directory) const;
  void remove_leftovers() const;
  std::optional<LoopState> load_candidate(const std::filesystem::path& directory, const NamedTensors& state,
                                          std::string& reason);
  std::string compare_with_model(const CheckpointManifest& manifest, const NamedTensors& state) const;
  void check_inputs(const CheckpointManifest& manifest) const;
  void fill(CheckpointReader& reader, const NamedTensors& state) const;
  std::filesystem::path temporary(int64_t step) const;

  std::filesystem::path directory_;
  Communicator& comm_;
  const std::vector<UnitSpec>& units_;
  CheckpointOptions options_;
  std::function<void(const std::string&)> event_;
  std::map<std::string, Placement> placements_;  // trained units by name

  Phase phase_ = Phase::kIdle;
  CheckpointWriter writer_;
  std::thread committer_;  // rank 0
  std::atomic<bool> commit_done_ = false;
  std::string commit_error_;
  LoopState loop_;  // of the save under way
  int64_t ignore_through_ = -1;
  int failures_ = 0;
  int64_t committed_step_ = -1;
  double started_ = 0, pause_ = 0, write_seconds_ = 0;  // the slowest rank's writing
  uint64_t committed_bytes_ = 0;
};

}  // namespace trireme
