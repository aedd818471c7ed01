#pragma once
// What the Trainer trains: the meeting point of a model family and its data. One implementation per family
// (causal_lm_task.cpp).

#include "data/row_scan.h"
#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/fsdp/plan.h"
#include "trireme/fsdp/sharded_units.h"
#include "trireme/nn/recompute.h"
#include "trireme/nn/unit.h"
#include "trireme/train/mlperf_events.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
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
  double samples = 0;      // this rank's
  /// Numbers that the losses of all ranks are normalised with (fp64, on the device), this rank's part; summed over the
  /// ranks before the first forward. The micro-batches refer to the same tensor. Undefined: none.
  at::Tensor counts;
};

/// Sums of one rank's evaluation, in an order that the task knows; added up over the ranks.
using EvalSums = std::vector<double>;
struct EvalResult {
  double loss = 0;
  std::optional<double> mlm_accuracy;
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
  /// What batch.global_batch_size counts, and epochs are made of: rows of data.train.
  virtual int64_t train_rows() const { return train_samples(); }
  /// Fills units, activation figures for one row of a micro-batch, and what they cost, for `config`: this run's, or one
  /// that differs from it in data.seq_length, batch, precision, or by a lora section. `input.compute_bytes` is set.
  virtual void fill_plan(const Config& config, PlanInput& input) const = 0;
  /// Whether a lora section is possible.
  virtual bool takes_adapters() const { return false; }
  virtual std::vector<std::string> describe() const = 0;  // banner lines: model, data

  /// Compares the files that training starts from with the model: the headers of the weights, the adapter whole. No
  /// weights of the base are read. ModelError.
  virtual void check_weights() = 0;
  /// data.train and data.valid as rows to check, as long as the task lives.
  virtual std::vector<RowSet> row_sets() const = 0;

  virtual void load_weights(ShardedUnits& units) = 0;
  /// How many rows go through the model at a time: the plan's choice, a divisor of batch.micro_batch_size. Once, and
  /// before any batch is asked for: those cannot be made without.
  virtual void set_rows_per_pass(int rows) = 0;
  /// Starts preparing global batch `step` (0-based) in the background.
  virtual void prefetch(int64_t step) = 0;
  virtual StepBatch batch(int64_t step) = 0;
  /// A batch of one pass made up without touching the data: what runs before the clock of a benchmark starts.
  virtual StepBatch synthetic_batch() = 0;
  /// Sum of weighted losses of the micro-batch: fp32 scalar, differentiable when `train`.
  virtual at::Tensor loss(UnitStore& units, const MicroBatch& batch, const std::vector<Recompute>& recompute,
                          bool train) = 0;
  /// Evaluation over this rank's share of the validation data, same number of forward passes on every rank.
  /// `progress(done, total)` is called after each forward pass.
  virtual EvalSums evaluate(ShardedUnits& units, const std::function<void(int64_t, int64_t)>& progress) = 0;
  virtual EvalResult eval_result(const EvalSums& sums) const = 0;
  /// Samples that a step counts for where evaluations are due, when rows and samples are not the same; evaluation i
  /// then comes after step ceil(i * eval.every_samples / this) instead of every so many steps.
  virtual std::optional<double> nominal_samples_per_step() const { return std::nullopt; }
  virtual std::unique_ptr<MlperfEvents> mlperf_events(MlperfLog& log) const = 0;
  /// What the global loss denominator is when every sample counts (GBS, or all targets); keeps sums near 1.
  virtual double nominal_denominator() const = 0;

  /// Writes the final artefact (adapter/ or model/) below `directory`; collective, rank 0 writes.
  virtual void save_artefact(ShardedUnits& units, const std::filesystem::path& directory) = 0;
};

}  // namespace trireme
