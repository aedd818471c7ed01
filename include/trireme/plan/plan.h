#pragma once
// The memory plan: how many ranks share a row, which units stay whole, the size of shard groups, the policy of trained
// units, which blocks backward recomputes, how many rows of a micro-batch are processed at a time, the bytes per rank,
// and the predicted time of a step. `--dry-run` prints the plan that the run uses, and every run compares it with the
// allocator's peak.

#include "trireme/config/config.h"
#include "trireme/fsdp/layout.h"
#include "trireme/nn/model_shape.h"
#include "trireme/nn/recompute.h"
#include "trireme/ops/dispatch.h"
#include "trireme/plan/rates.h"

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

/// Facts of a model that a plan needs beside its shape.
struct ModelFacts {
  const std::vector<UnitSpec>* units = nullptr;
  std::vector<std::string> description;      // lines for people: model, data
  std::vector<std::string> adapter_targets;  // lora.target_modules of a lora section; empty: no adapters are possible
  bool frozen_fp8 = false, trained_fp8 = false;  // precision.linear: fp8 is possible with, without lora
  bool frozen_nf4 = false;                       // precision.frozen: nf4 is possible
  Recipe automatic_fp8 = Recipe::kFp8Rowwise;    // precision.fp8_recipe: auto
  bool divides_rows = false;                     // several ranks may share a row
};

/// A model with its rows, for a plan.
class PlannedModel {
 public:
  virtual ~PlannedModel() = default;
  virtual const ModelFacts& facts() const = 0;
  /// The shape for `config`, with rows of data.seq_length tokens. `config` may differ from the run's in
  /// data.seq_length, batch, precision and the lora section. `element_size`: bytes of the compute dtype.
  virtual ModelShape model_shape(const Config& config, int64_t element_size) const = 0;
};

/// The inputs of a plan. Config and model outlive this struct.
struct PlanQuestion {
  const Config& config;
  const PlannedModel& model;
  int ranks = 1;
  bool gpu = false;
  int64_t device_memory = 0;  // bytes of each rank's device
  int64_t host_memory = 0;    // bytes of its host that a rank may pin; 0: none
  int ranks_per_host = 0;     // 0: all ranks are on one host
  MachineRates rates{};
  int context_size = 0;  // ranks that share a row; 0: choose_context_size()
  KernelClass kernels = planned_kernel_class(at::kCPU);
  /// The same question for another configuration, which outlives the result, and number of ranks.
  PlanQuestion with(const Config& other, int other_ranks) const {
    return {other, model, other_ranks, gpu, device_memory, host_memory, ranks_per_host, rates, 0, kernels};
  }
};

/// Bytes that each of `ranks` ranks of a host may pin of its available memory (a simulation: all its memory). The rest
/// is for the processes, their data and the files that they read and write. CUDA's pinned memory does not count against
/// RLIMIT_MEMLOCK.
constexpr int64_t pinnable_memory(int64_t available, int ranks) { return available / 100 * 85 / ranks; }

/// Seconds of one step as the plan's cost model predicts them. Communication that computation hides costs only
/// `interference`: it takes memory bandwidth, multiprocessors and power from the products.
struct StepCost {
  double compute = 0, recompute = 0, exposed = 0, interference = 0, optimizer = 0, fixed = 0;
  double offload = 0;  // copies of activations to the host and back that are not hidden
  double copies = 0;   // these copies, hidden or not: no part of the total
  double state = 0;    // master weights and moments from the host through the device and back
  bool known = false;  // from rates of the machine; otherwise only ratios are meaningful
  double total() const { return compute + recompute + exposed + interference + optimizer + fixed + offload + state; }
};

/// How a run uses the memory of its ranks, and the time that a step takes.
struct TrainingPlan {
  int context_size = 1;  // ranks that share a row
  int shard_size = 1;
  ShardPolicy policy = ShardPolicy::kNone;  // of trained units
  int rows_per_pass = 1;                    // rows processed at a time; divides the rows of a micro-batch
  std::vector<bool> resident;               // per unit: a frozen unit that stays whole although shard_size > 1
  std::vector<bool> keeps_transposed;       // per unit: ShardingOptions::keeps_transposed
  std::vector<Recompute> recompute;         // per block
  int64_t tile_tokens = 0;                  // Recomputation::tile_tokens
  int offloaded = 0;                        // first blocks whose values go to the host
  int host_units = 0;                       // first trained units whose master weights and moments wait on the host
  // Bytes per rank.
  int64_t weights = 0, masters = 0, moments = 0, gradients = 0, gather_slots = 0, activations = 0, working = 0,
          overhead = 0, transposed = 0;
  /// Bytes of `gradients` that take the place of activations which backward has freed.
  int64_t reused = 0;
  // Bytes of pinned host memory, which no other number counts: for activations, for master weights and moments.
  int64_t host = 0, host_state = 0;
  int64_t total() const {
    return weights + masters + moments + gradients + gather_slots + activations + working + overhead + transposed -
           reused;
  }
  int64_t gathered_per_pass = 0;         // bytes a rank receives in one forward pass
  int64_t reduced_per_step = 0;          // bytes of gradients that a rank receives in one step from its shard group
  int64_t replica_reduced_per_step = 0;  // the same from replicas: an all-reduce, which moves each byte twice
  int64_t transposes = 0;                // bytes of codes that dgrad transposes in a step beside a recipe's traffic
  int64_t device_memory = 0;             // 0: unknown
  int64_t accumulated_passes = 1;        // passes whose gradients are summed before they are reduced
  StepCost cost;
  /// Ranks over which checkpoints divide the trained state.
  int state_shards() const { return policy == ShardPolicy::kNone ? 1 : shard_size; }
  /// Whether the gradients of each pass are reduced separately, into fp32 shards.
  bool reduces_each_pass() const { return state_shards() > 1 && policy >= ShardPolicy::kGradients; }
  /// Memory that a plan must leave free: its byte counts are estimates, and the allocator loses some memory to
  /// fragmentation.
  int64_t headroom() const { return device_memory / 50; }
  /// Bytes by which the plan exceeds the device's memory; 0 or less: it fits.
  int64_t lacking() const { return device_memory == 0 ? 0 : total() + headroom() - device_memory; }
  bool fits() const { return lacking() <= 0; }
};

/// parallel.context_size of the question: as configured, or with auto the smallest with which the run fits.
/// ConfigError, which says what would be needed, where the ranks cannot share a row: each has a query head of its own,
/// and all of them are on one host.
int choose_context_size(const PlanQuestion& question);

/// The plan of the run. ConfigError if no plan fits; it says where the memory goes and has the first three hints
/// (hints.h).
TrainingPlan plan_run(const PlanQuestion& question);

/// "weights 12.6 GiB, master weights 25.1 GiB, …": where the memory goes.
std::string describe_parts(const TrainingPlan& plan);

/// For a plan that does not fit: "the run needs 80.0 GiB per rank and 1.6 GiB of headroom, 79.1 GiB is available (…)".
std::string describe_need(const TrainingPlan& plan);

/// "predicted step: 610.2 ms (computation 580.1, …)".
std::string describe_cost(const StepCost& cost);

/// The plan as a table for the console and the log.
std::string describe_plan(const TrainingPlan& plan, const std::vector<UnitSpec>& units);

}  // namespace trireme
