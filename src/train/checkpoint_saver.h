#pragma once
// Private to train/: a save over all ranks, beside the steps.
//
// The state is copied to host memory (all that the step waits for), a writer thread of each rank writes its file below
// step-N.tmp-RUN. Where state waits on the host, which has no room for a copy, it is written from where it is: forward
// and backward of the next step go on, its optimizer waits. When all ranks have finished, as the steps' all-reduce of
// statistics shows, rank 0 commits the checkpoint (CheckpointFolder) on its own thread. A save that fails changes no
// older one; kMaxFailures in a row end the run with exit code 73.

#include "checkpoint_folder.h"
#include "checkpoint_writer.h"
#include "training_state.h"
#include "trireme/comm/communicator.h"

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace trireme {

class CheckpointSaver {
 public:
  /// `event`: takes one JSON object for metrics.jsonl; called on rank 0. The others outlive the saver. `in_place`: the
  /// state is not copied.
  CheckpointSaver(const CheckpointFolder& folder, const CheckpointRun& run, Communicator& comm,
                  std::function<void(const std::string&)> event, bool in_place = false);
  ~CheckpointSaver();

  /// For runs with regular saves: allocates the host memory of the copies in the background, while the run is loaded.
  void prepare(const std::vector<StateTensor>& state) { writer_.prepare(pieces_to_save(state, comm_.rank())); }
  /// Collective. Waits for the save under way, copies the state, starts writing. Throws as advance_if_ready().
  void start(const std::vector<StateTensor>& state, const LoopState& loop);
  /// Call before the state changes: returns when a save under way does not read it any more.
  void await_state();
  /// Whether this rank has finished the phase of the save that is under way (0 or 1): summed over ranks in the step's
  /// all-reduce.
  double ready() const;
  /// Collective. Given the sum of ready() that step `step` carried and the last step begun: moves the save on when
  /// every rank is ready. Throws CollectiveError after kMaxFailures failed saves in a row.
  void advance_if_ready(int64_t step, int64_t last_begun, double sum);
  /// Collective. Waits until no save is under way. Never throws for a failed save.
  void complete();
  /// Collective. CheckpointFolder::holds() of rank 0.
  bool holds(int64_t step);
  /// The step of the newest checkpoint that this process has committed or gone on from; -1: none.
  int64_t committed() const { return committed_step_; }
  /// The most that a stop may wait for its save, as far as is known: the longest save of this process so far, from its
  /// begin to its commit; twice that while one is under way, which ends first. 0 before the first save.
  double seconds_to_save() const;
  /// The run goes on from the checkpoint of this step.
  void resumed(int64_t step) { committed_step_ = step; }

  static constexpr int kMaxFailures = 3;

 private:
  enum class Phase { kIdle, kWriting, kCommitting };
  void advance();
  void start_commit();
  void commit(const std::vector<std::string>& descriptions);
  void end_commit();
  bool failed_anywhere(const std::string& problem);
  void failed(const std::string& reason);
  void give_up_after_failures() const;

  const CheckpointFolder& folder_;
  const CheckpointRun& run_;
  Communicator& comm_;
  std::function<void(const std::string&)> event_;

  Phase phase_ = Phase::kIdle;
  CheckpointWriter writer_;
  std::thread committer_;  // rank 0
  std::atomic<bool> commit_done_ = false;
  std::string commit_error_;
  LoopState loop_;               // of the save under way
  int64_t ignore_through_ = -1;  // sums of ready() in steps up to this one count the phase before
  int failures_ = 0;             // failed saves in a row
  int64_t committed_step_ = -1;
  /// Seconds: when the save under way began (steady clock), how long training waited for it, how long the slowest rank
  /// wrote.
  double started_ = 0, pause_ = 0, write_seconds_ = 0;
  double longest_ = 0;  // seconds of a save, from its begin to its commit
  uint64_t committed_bytes_ = 0;
};

}  // namespace trireme
