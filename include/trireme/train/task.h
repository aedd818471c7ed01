#pragma once
// What the Trainer trains: the meeting point of a model family and its data. One implementation per family (llama_task.cpp).

#include "trireme/fsdp/plan.h"
#include "trireme/fsdp/sharded_units.h"
#include "trireme/ops/checkpoint.h"
#include "trireme/ops/unit.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// One forward's worth of samples on the device; the task knows what is inside.
struct MicroBatch {
  virtual ~MicroBatch() = default;
};

/// This rank's part of a global batch.
struct StepBatch {
  std::vector<std::unique_ptr<MicroBatch>> micro_batches;
  double denominator = 0;  // what the loss sum is divided by, this rank's part: samples with a target, or targets
};

struct EvalSum {
  double loss = 0, denominator = 0;
};

class TrainingTask {
 public:
  virtual ~TrainingTask() = default;
  virtual const std::vector<UnitSpec>& units() const = 0;
  virtual int64_t num_parameters() const = 0;
  virtual int64_t num_trained_parameters() const = 0;
  virtual double flops_per_sample() const = 0;
  virtual int64_t train_samples() const = 0;
  virtual int64_t eval_samples() const = 0;
  /// Fills the activation figures of a plan for one row of a micro-batch, and what they cost.
  virtual void fill_plan(PlanInput& input) const = 0;
  virtual std::vector<std::string> describe() const = 0;  // banner lines: model, data

  virtual void load_weights(ShardedUnits& units) = 0;
  /// Starts preparing global batch `step` (0-based) in the background.
  virtual void prefetch(int64_t step) = 0;
  /// How many rows go through the model at a time from now on: the plan's choice, a divisor of batch.micro_batch_size.
  virtual void set_rows_per_pass(int rows) = 0;
  virtual StepBatch batch(int64_t step) = 0;
  /// A batch of one pass made up without touching the data: what runs before the clock of a benchmark starts.
  virtual StepBatch synthetic_batch() = 0;
  /// Sum of weighted losses of the micro-batch: fp32 scalar, differentiable when `train`.
  virtual at::Tensor loss(UnitStore& units, const MicroBatch& batch, const std::vector<Recompute>& recompute, bool train) = 0;
  /// Evaluation over this rank's share of the validation data, same number of forward passes on every rank.
  /// `progress(done, total)` is called after each forward pass.
  virtual EvalSum evaluate(ShardedUnits& units, const std::function<void(int64_t, int64_t)>& progress) = 0;
  /// What the global loss denominator is when every sample counts (GBS, or all targets); keeps sums near 1.
  virtual double nominal_denominator() const = 0;

  /// Writes the final artefact (adapter/ or model/) below `directory`; collective, rank 0 writes.
  virtual void save_artefact(ShardedUnits& units, const std::filesystem::path& directory) = 0;
};

}  // namespace trireme
