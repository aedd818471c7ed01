#pragma once
// Private to train/: what one step does: its inputs (RunParts) and the step itself (TrainStep).

#include "mlperf.h"
#include "run_clock.h"
#include "run_directory.h"
#include "step_guard.h"
#include "steps_in_flight.h"
#include "task.h"
#include "training_state.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/config/config.h"
#include "trireme/fsdp/sharded_units.h"
#include "trireme/nn/host_state.h"
#include "trireme/ops/device.h"
#include "trireme/optim/optimizer.h"
#include "trireme/plan/plan.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// What the stages of a start (run.cpp) have made when the loop begins. The objects outlive the loop.
struct RunParts {
  const Config& config;
  World& world;
  RankGrid grid;  // with the plan's shard groups
  TrainingTask& task;
  const TrainingPlan& plan;
  at::ScalarType compute_dtype;
  const DeviceInfo& device_info;
  RunDirectory& directory;
  MlperfEvents& mlperf;
  std::function<void()> weights_loaded;  // Trainer calls it on every rank when the weights are there; may throw

  Communicator& comm() const { return world.communicator(); }
};

/// This rank's values in a step's all-reduce.
struct StepVotes {
  bool stop = false;        // it was asked to stop
  double save_ready = 0;    // CheckpointSaver::ready()
  bool minutes_up = false;  // rank 0: output.save_every_minutes have passed
};

class TrainStep {
 public:
  /// The weights are not there yet. `votes` is asked in each step, `before_update` called before the state changes,
  /// `event` takes one JSON object for metrics.jsonl.
  TrainStep(const RunParts& run, const RunClock& clock, RunProgress& progress, std::function<StepVotes()> votes,
            std::function<void()> before_update, std::function<void(const std::string&)> event);

  /// Queues step `step` (from 0) and counts it in `progress`. Waits for no step but, where that one may be skipped, for
  /// the step before.
  void train_step(int64_t step);
  /// Forward and backward twice on made-up rows; nothing is updated.
  void warm_up();
  /// Computes step `step` (from 1) again and says which parameters of which ranks have gradients that are not finite.
  /// Collective.
  std::string find_nonfinite(int64_t step);

  /// What a checkpoint keeps: tensors, in the order of its files. Those on the host have their values.
  std::vector<StateTensor> state();
  /// The weights have been read or drawn into the masters.
  void weights_changed();

  ShardedUnits& units() { return *units_; }
  const ShardedUnits& units() const { return *units_; }
  StepGuard& guard() { return *guard_; }
  const StepGuard& guard() const { return *guard_; }
  StepsInFlight& in_flight() { return in_flight_; }

 private:
  /// Waits for the rows of step `step`, and starts preparing the rows of the next step.
  StepBatch next_batch(int64_t step);
  /// Sum of this rank's losses, fp64 scalar on the device; the gradients are reduced over the ranks.
  at::Tensor forward_backward(const StepBatch& batch);
  /// The step's StepStat (train_step.cpp), then its metrics, summed over the ranks: fp64 on the device. Collective.
  at::Tensor reduce_statistics(const at::Tensor& loss_sum, const StepBatch& batch);
  /// The factor of gradients in the optimizer, fp32 scalar on the device: undoes the loss scale, and clips.
  at::Tensor gradient_multiplier(const at::Tensor& unscale, const at::Tensor& grad_norm) const;
  /// The learning rate of step `step`; waits for the step before where that may be skipped.
  double step_learning_rate(int64_t step) const;
  /// Whether optimizer.clip local means anything here: with one rank its own gradient is the sum.
  bool clips_locally() const;
  /// optimizer.clip local: what a rank multiplies its own gradients with.
  at::Tensor local_clip(const std::vector<at::Tensor>& gradients) const;
  /// For tests of faults: with TRIREME_FAULT gradients pass through the fault points gradient:NAME.
  void observe_faults();

  const RunParts& run_;
  const Config& config_;
  TrainingTask& task_;
  Communicator& comm_;
  const RunClock& clock_;
  RunProgress& progress_;
  std::function<StepVotes()> votes_;
  std::function<void()> before_update_;
  std::unique_ptr<OffloadStore> offload_;  // null: all activations stay on the device
  std::unique_ptr<HostState> host_state_;  // null: masters and moments are on the device
  Recomputation recomputation_;
  std::unique_ptr<ShardedUnits> units_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<StepGuard> guard_;
  StepsInFlight in_flight_;
};

/// The first of these tensors, over all ranks, that is not finite: "NAME on rank R is not finite" (stored_name()).
/// Empty: all are finite. Collective.
std::string find_nonfinite_state(const std::vector<StateTensor>& state, Communicator& comm);

}  // namespace trireme
