#pragma once
// The memory plan: which units stay whole, over how many ranks the others are sharded, what of the trained units is
// divided, which blocks backward recomputes, how many rows of a micro-batch are processed at a time, how many bytes per
// rank that takes, and how long a step is predicted to take.
// `--dry-run` prints the plan that the run uses, and every run compares it with the allocator's peak.

#include "trireme/config/config.h"
#include "trireme/fsdp/policy.h"
#include "trireme/nn/recompute.h"
#include "trireme/nn/unit.h"
#include "trireme/plan/rates.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// Seconds that parts of a step take on one rank. Only ratios matter for the choice of a plan; with measured rates
/// (MachineRates) the sum predicts the step.
struct StepTimes {
  // For one row of a micro-batch: a block's forward and backward, what is recomputed with each Recompute, the head with
  // its loss, forward and backward.
  double block_forward = 1.0, block_backward = 2.0, norms_forward = 0.05, mlp_forward = 0.5, head = 0.0;
  double pass = 0.0;                               // of a pass, independent of its rows
  double gathered_byte = 0.0, network_byte = 0.0;  // one byte received from a rank of this host, of another host
  /// Of a collective over several hosts: its start, and a step of a ring and of a tree inside a host and between two.
  double collective_start = 0.0, ring_link_step = 0.0, ring_network_step = 0.0, tree_link_step = 0.0,
         tree_network_step = 0.0;
  double interference = 0.28;   // MachineRates::interference
  double optimizer_byte = 0.0;  // one byte that the optimizer's pass reads or writes
  double fixed = 0.0;           // of a step, independent of its size
  double waiting = 0.0;         // MachineRates::waiting
  bool known = false;           // from rates of the machine; otherwise only ratios mean something
};

struct PlanInput {
  const std::vector<UnitSpec>* units = nullptr;
  std::shared_ptr<const void> owner;  // keeps `units` alive if nothing else does
  int world_size = 1;
  int ranks_per_host = 0;      // Topology::largest_group(); 0: all ranks are on one host
  int64_t compute_bytes = 2;   // per element of the compute and storage dtype
  int64_t gradient_bytes = 4;  // per element of a gradient that is reduced; sums over passes are fp32
  int64_t moment_bytes = 8;    // per element, both moments
  bool frozen_fp8 = false;     // matrices of linear layers of frozen units take one byte per element
  /// Of trained units: ShardingOptions::trained, compute_first, compute_last.
  Recipe trained = Recipe::kCompute;
  int64_t compute_first = 0, compute_last = 0;
  int64_t device_memory = 0;  // bytes a rank may use; 0: unknown, every plan fits
  int64_t overhead = 0;       // context, library workspaces, communicator buffers
  int num_blocks = 0;
  // Bytes per row. What a block keeps with each Recompute (kNorms, kMlp: 0 where it is not possible). What is needed in
  // addition: at the peak of backward; by the head.
  int64_t block_saved = 0, block_saved_norms = 0, block_saved_mlp = 0, block_recomputed = 0, working_peak = 0, head = 0;
  int64_t head_fixed = 0;                         // of the head, whatever the rows: a weight gradient
  int64_t head_logits = 0, head_logits_most = 0;  // logits of a row; so many bytes of them at a time
  int64_t working_fixed = 0;           // working memory that does not depend on the rows (a transposed weight)
  int rows = 1;                        // of a micro-batch
  int rows_multiple = 1;               // a split micro-batch has passes of a multiple of this many rows
  int micro_batches = 1;               // of one rank in one step
  std::optional<int> shard_size;       // nullopt = auto
  std::optional<ShardPolicy> policy;   // nullopt = auto
  std::optional<Recompute> recompute;  // nullopt = auto: the least that fits
  /// Per block, for a configuration that names the blocks that are recomputed; empty: `recompute` decides.
  std::vector<Recompute> recompute_blocks;
  MachineRates rates;
  StepTimes times;
};

/// Seconds of one step as the plan's cost model predicts them. A communication that computation hides costs
/// `interference` only: it takes memory bandwidth, multiprocessors and power from the products.
struct StepCost {
  double compute = 0, recompute = 0, exposed = 0, interference = 0, optimizer = 0, fixed = 0;
  bool known = false;  // StepTimes::known
  double total() const { return compute + recompute + exposed + interference + optimizer + fixed; }
};

struct MemoryPlan {
  int shard_size = 1;
  ShardPolicy policy = ShardPolicy::kNone;  // of trained units
  int rows_per_pass = 1;                    // rows processed at a time; divides the rows of a micro-batch
  std::vector<bool> resident;               // per unit: frozen, stays whole although shard_size > 1
  std::vector<Recompute> recompute;         // per block
  // Bytes per rank.
  int64_t weights = 0, masters = 0, moments = 0, gradients = 0, gather_slots = 0, activations = 0, working = 0,
          overhead = 0;
  /// Bytes of `gradients` that take the place of activations which backward has freed.
  int64_t reused = 0;
  int64_t total() const {
    return weights + masters + moments + gradients + gather_slots + activations + working + overhead - reused;
  }
  int64_t gathered_per_pass = 0;         // bytes a rank receives in one forward pass
  int64_t reduced_per_step = 0;          // bytes of gradients that a rank receives in one step from its shard group
  int64_t replica_reduced_per_step = 0;  // and from replicas of its part: an all-reduce, which moves each byte twice
  int64_t device_memory = 0;             // 0: unknown
  int64_t accumulated_passes = 1;        // passes whose gradients are summed before they are reduced
  StepCost cost;
  /// Ranks over which checkpoints divide the trained state.
  int state_shards() const { return policy == ShardPolicy::kNone ? 1 : shard_size; }
  /// Whether the gradients of each pass are reduced by themselves, into fp32 shards.
  bool reduces_each_pass() const { return state_shards() > 1 && policy >= ShardPolicy::kGradients; }
  /// Memory that a plan must leave free: its byte counts are estimates, and the allocator loses some memory to
  /// fragmentation.
  int64_t headroom() const { return device_memory / 50; }
  /// Bytes by which the plan exceeds the device's memory; 0 or less: it fits.
  int64_t lacking() const { return device_memory == 0 ? 0 : total() + headroom() - device_memory; }
  bool fits() const { return lacking() <= 0; }
};

/// What a plan needs of a model, beside its work.
struct ModelFacts {
  const std::vector<UnitSpec>* units = nullptr;
  std::vector<std::string> description;          // lines for people: model, data
  std::vector<std::string> adapter_targets;      // lora.target_modules of a lora section; empty: none is possible
  bool frozen_fp8 = false, trained_fp8 = false;  // precision.linear: fp8 is possible with a lora section, without one
  Recipe automatic_fp8 = Recipe::kFp8Rowwise;    // precision.fp8_recipe: auto
};

/// A model with its rows, as plans see it.
class PlannedModel {
 public:
  virtual ~PlannedModel() = default;
  virtual const ModelFacts& facts() const = 0;
  /// Fills units, activation figures (bytes) for one row of a micro-batch, and what they cost (seconds), for `config`:
  /// this run's, or one that differs from it in data.seq_length, batch, precision, or by a lora section.
  /// `input.compute_bytes` is set.
  virtual void fill_plan(const Config& config, PlanInput& input) const = 0;
};

/// Of the plans that fit, the one with the shortest predicted step, where a shard group over several hosts counts
/// as 5 percent slower; among equal ones that with the smallest shard group, then the policy that divides
/// least, then with the most rows per pass, then with the most resident units. nullopt if no plan fits. An input
/// without units, or a shard size that does not divide world_size, is an internal error.
std::optional<MemoryPlan> find_plan(const PlanInput& input);
/// The same; throws ConfigError with describe_need() if no plan fits.
MemoryPlan make_plan(const PlanInput& input);
/// The plan that takes the least memory, whether it fits or not.
MemoryPlan least_plan(const PlanInput& input);

/// parallel.recompute as a share of the blocks: which of them backward recomputes whole, by
/// fms-fsdp's rule (selective_checkpointing, at its HEAD): with i from 1 and a threshold c that starts at 1/2, block i
/// is recomputed if i * fraction >= c, and c then rises by 1. The recomputed blocks are spread evenly: 1/3 of 15 blocks
/// takes the second of every three. fraction <= 0 takes none, >= 1 all; the comparison is in double, as there. One
/// entry per block, kFull or kNone.
std::vector<Recompute> recompute_fraction(int num_blocks, double fraction);

/// For a plan that does not fit: "the run needs 80.0 GiB per rank and 1.6 GiB of headroom, 79.1 GiB is available (…)".
std::string describe_need(const MemoryPlan& plan);

/// "predicted step: 610.2 ms (computation 580.1, …)".
std::string describe_cost(const StepCost& cost);

/// The plan as a table for the console and the log.
std::string describe_plan(const MemoryPlan& plan, const std::vector<UnitSpec>& units);

}  // namespace trireme
