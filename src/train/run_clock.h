#pragma once
// Private to train/: when a run evaluates, saves and compares its ranks, and how long its steps take.

#include "metrics.h"
#include "trireme/base/time.h"
#include "trireme/config/batch_sizes.h"
#include "trireme/config/config.h"
#include "trireme/watchdog/progress.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// The end of the work that a rank had queued at some time.
struct TimePoint {
  std::shared_ptr<c10::Event> event;  // GPUs: recorded on the current stream; CPUs: null
  double seconds = 0;                 // host time
};

/// Steps count from 1: "after step n" means that n optimizer steps are done. Nothing here is collective; what depends
/// on a host clock (minutes_passed()) is decided by rank 0 and comes back to all ranks as request_save().
class RunClock {
 public:
  /// `nominal_samples_per_step`: TrainingTask::nominal_samples_per_step(). `now`: the host clock in seconds;
  /// `process_begin`: its time from which train.max_time counts.
  RunClock(const Config& config, std::optional<double> nominal_samples_per_step, at::Device device,
           std::function<double()> now = steady_seconds, double process_begin = trireme::process_begin());

  /// The run goes on after step `step` (0: from the start), with `samples` seen by all ranks so far.
  void start_run(int64_t step, int64_t samples);
  int64_t first_step() const { return first_step_; }
  /// Seconds of host time since start_run().
  double run_seconds() const { return now_() - run_begin_; }
  /// Samples per second of host time since start_run(), given the samples seen now.
  double run_rate(int64_t samples) const;

  const BatchSizes& batches() const { return batches_; }

  /// Whether an evaluation follows step `step`: every ceil(eval.every_samples / global batch) steps; with nominal
  /// samples per step or a batch that grows, evaluation i follows the step that completes i * eval.every_samples.
  bool evaluation_due(int64_t step) const;
  /// Whether eval.skip_first skips evaluation number `index` (from 0).
  bool skips_evaluation(int64_t index) const;

  /// Whether a save follows step `step`: output.save_every_samples says so, a save was requested, or one that was due
  /// earlier has not been done. The last step is not one of these: Trainer::finish() saves it.
  bool save_due(int64_t step) const;
  /// Whether output.save_every_minutes have passed since the last save, by this host's clock.
  bool minutes_passed() const;
  /// A save is due after the next step, on all ranks alike.
  void request_save() { save_requested_ = true; }
  /// `seconds`: that the loop stood still for it.
  void saved(int64_t step, double seconds = 0);
  /// An evaluation took so long.
  void evaluated(double seconds);
  int64_t last_saved_step() const { return last_saved_step_; }

  /// If the ranks' section times are compared after step `step`, the number of steps that the times span.
  std::optional<int64_t> take_straggler_interval(int64_t step);

  /// Whether the run must stop now to have its state saved before train.max_time has passed since the process began:
  /// when less is left than two of the longest recent steps and `save_seconds` take. By this host's clock.
  bool time_is_up(double save_seconds) const;
  /// The remaining time after step `step`: steps, and the evaluations and saves between and after them, each as long as
  /// those so far took on average. At least one step was timed.
  double remaining_seconds(int64_t step) const;
  /// Whether the run goes on for so long after step `step`, by remaining_seconds() and train.max_time.
  bool goes_on_for(double seconds, int64_t step) const;

  /// Marks the end of the work queued so far; on GPUs one event, no synchronization.
  TimePoint mark() const;
  /// The next step's time counts from here: after start-up, evaluations and saves.
  void start_step() { step_begin_ = mark(); }
  /// Seconds of the step that ended at `end`, by the device's clock on GPUs. Its event has been waited for. The next
  /// step's time counts from there.
  double end_step(const TimePoint& end);
  int64_t timed_steps() const { return timed_steps_; }
  /// Of the steps timed so far, at least one.
  double mean_step_seconds() const { return timed_seconds_ / static_cast<double>(timed_steps_); }
  /// Of the newest steps, at most kNewestSteps, at least one: not disturbed by the first steps of a process.
  double median_step_seconds() const;
  static constexpr int64_t kNewestSteps = 256;

  /// An MLPerf block: the steps between two evaluations. `samples`: seen by all ranks so far.
  void start_block(int64_t samples);
  /// The block that ends after step `step`; nothing where none is open. `loss`: of that step.
  std::optional<MlperfBlock> end_block(int64_t step, int64_t samples, double loss);

 private:
  struct Block {
    bool open = false;
    int64_t first_samples = 0, steps = 0;
    double seconds = 0;
  };

  /// Intervals of `every` samples that are complete after step `step`. A batch of one size takes ceil(every / size)
  /// whole steps for each.
  int64_t intervals(int64_t step, int64_t every) const;

  const Config& config_;
  const BatchSizes batches_;
  std::optional<double> nominal_samples_per_step_;
  at::Device device_;
  std::function<double()> now_;
  int64_t first_step_ = 0, first_samples_ = 0;
  double process_begin_ = 0, run_begin_ = 0;
  std::optional<int64_t> max_seconds_;  // train.max_time
  double save_seconds_ = 0, evaluation_seconds_ = 0;
  int64_t saves_ = 0, evaluations_ = 0;
  bool save_requested_ = false;
  int64_t last_saved_step_ = -1;  // or the step that the run started from
  double last_save_time_ = 0;
  int64_t last_straggler_step_ = 0;
  TimePoint step_begin_;  // of the oldest step in flight
  double timed_seconds_ = 0;
  int64_t timed_steps_ = 0;
  std::vector<double> newest_;  // seconds of steps, a ring
  Block block_;
};

// Finds ranks that are slower than the others, from their host seconds of work between collectives.

/// When to compare the ranks: after the first ten steps, then every fifty.
bool straggler_report_due(int64_t steps_since_start);

/// Text of one rank's times for the exchange.
std::string encode_section_times(const std::vector<SectionTime>& times);

/// `per_rank`: of every rank, what it exchanged; `steps`: how many steps they span. One sentence per rank and section
/// that takes more than twice the median of all ranks and makes a step of `step_seconds` at least a quarter longer.
std::vector<std::string> find_stragglers(const std::vector<std::string>& per_rank,
                                         const std::vector<std::string>& hosts, int64_t steps, double step_seconds);

}  // namespace trireme
