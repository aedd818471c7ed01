#pragma once
// Private to train/: the training loop: steps, evaluations and saves in their order, and the end of a run.

#include "checkpoint_saver.h"
#include "evaluation.h"
#include "profiler.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

namespace trireme {

/// How the algorithms of matrix products are chosen.
enum class ProductChoice {
  kFirst,      // the library's first
  kBrief,      // measured for some milliseconds each
  kSustained,  // measured under load, where power decides the clock
};
/// TRIREME_PRODUCTS; nullopt: by the run's length. ConfigError where it is none of its words.
std::optional<ProductChoice> wanted_products();

class Trainer {
 public:
  /// `run` outlives the trainer.
  explicit Trainer(const RunParts& run);
  ~Trainer();

  /// Loads weights or resumes, trains, evaluates, saves. Returns kDone, or after a signal kStopped with the state saved
  /// and whole on disk (output.save_on_stop: false: 128 + the signal's number). kDone, too, where train.max_time ends
  /// the run, with the state saved. Rank 0 writes summary.json, unless it throws.
  ExitCode run();
  /// The same where `failure` ends the run; a failure to write is a warning.
  void report_failure(const std::exception& failure) noexcept;

 private:
  /// The work before the first step.
  void start();
  /// A signal, or on rank 0 train.max_time: this rank's vote to stop.
  bool asked_to_stop() const;
  bool finished() const { return progress_.completed >= config_.train.max_steps; }
  /// An evaluation; output.keep_best: writes what was trained if it is the best so far.
  void evaluate();
  /// Warns where best/ is not of the best evaluation, as after a resume from before the one that it is of.
  void check_best() const;
  /// The next step of a run with a profile.
  void profiled_step();
  /// Reads the oldest step in flight; waits for that step only. Throws where its numbers end the run.
  void collect_step();
  void collect_all_steps();
  void guard_numbers(const StepRecord& record);
  void report_stragglers(int64_t steps);
  /// Chooses the algorithms of the matrix products, between two steps; the first time of a run that goes on for hours
  /// under load. On all ranks alike.
  void choose_products();
  /// Whether it does so at all: on GPUs, unless TRIREME_PRODUCTS=first.
  bool measures_products() const;
  /// Whether it is time to do so, after a step.
  bool products_due() const;
  void save_checkpoint();

  /// After a signal or train.max_time: saves, and returns kStopped only when the checkpoint of this step is whole on
  /// disk.
  ExitCode stop();
  ExitCode stop_without_saving(int signal);
  void finish();
  /// Saves the state after the last step, if no checkpoint has it; why there is none, empty: there is one.
  std::string save_last_step();
  /// Where the artefact cannot be written, a checkpoint keeps what was trained.
  void save_artefact();
  /// Why the state must not be saved; empty: nothing. Collective.
  std::string state_problem();
  std::string newest_checkpoint() const;  // a part of a sentence

  const RunParts& run_;
  const Config& config_;
  Communicator& comm_;
  RunDirectory& directory_;
  const std::optional<ProductChoice> products_;
  bool products_chosen_ = false;
  RunProgress progress_;
  RunClock clock_;
  StopVote stop_vote_;
  TrainStep step_;
  Report report_;
  const CheckpointFolder folder_;
  const CheckpointRun description_;
  CheckpointSaver checkpoints_;
  Evaluation evaluation_;
  std::unique_ptr<Profiler> profiler_;  // null: no step is recorded
};

}  // namespace trireme
