#pragma once
// The search for a plan: its input, the best plan and the smallest plan.

#include "trireme/optim/optimizer.h"
#include "trireme/plan/cost.h"
#include "trireme/plan/memory.h"
#include "trireme/plan/plan.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme {

struct PlanInput {
  const std::vector<UnitSpec>* units = nullptr;
  std::shared_ptr<const void> owner;  // keeps `units` alive if nothing else does
  int world_size = 1;
  int context_size = 1;             // ranks that share a row; `row` and `times` are of a rank's slice of it
  int ranks_per_host = 0;           // Topology::largest_group(); 0: all ranks are on one host
  int64_t compute_bytes = 2;        // per element of the compute and storage dtype
  int64_t gradient_bytes = 4;       // per element of a gradient that is reduced
  int64_t sum_bytes = 4;            // the same of a sum over passes
  int64_t master_bytes = 4;         // per element of master weights; of the compute dtype: they are the weights
  int64_t moment_bytes = 8;         // per element, both moments
  int64_t matrix_moment_bytes = 8;  // the same of elements of matrices (ParameterSpec::matrix_rows)
  MatrixWork matrix_work;           // of the optimizer
  bool frozen_fp8 = false;          // matrices of linear layers of frozen units take one byte per element
  bool frozen_nf4 = false;          // ShardingOptions::frozen_nf4
  /// Of trained units: ShardingOptions::trained, compute_first, compute_last.
  Recipe trained = Recipe::kCompute;
  int64_t compute_first = 0, compute_last = 0;
  bool transpose_cache = true;  // transposed codes may stay
  int64_t device_memory = 0;    // bytes a rank may use; 0: unknown, every plan fits
  int64_t host_memory = 0;      // bytes of pinned host memory a rank may use
  int64_t overhead = 0;         // context, library workspaces, communicator buffers
  KernelClass kernels = KernelClass::kHopper;
  int num_blocks = 0;
  RowMemory row;
  RowTimes times;
  int rows = 1;                        // of a micro-batch
  int rows_multiple = 1;               // a split micro-batch has passes of a multiple of this many rows
  int micro_batches = 1;               // of one rank in one step
  std::optional<int> shard_size;       // nullopt = auto
  std::optional<ShardPolicy> policy;   // nullopt = auto
  std::optional<Recompute> recompute;  // nullopt = auto: the least that fits
  /// Per block, for a configuration that names the blocks that are recomputed; empty: `recompute` decides.
  std::vector<Recompute> recompute_blocks;
  int64_t row_tokens = 0;
  std::optional<int64_t> tile;  // tokens, 0: no tiles; nullopt = auto
  /// Whether the values of blocks that are recomputed whole go to the host: none, all, or as many as the plan chooses.
  enum class Offload { kNone, kAuto, kAll } offload = Offload::kNone;
  /// Whether master weights and moments of trained units wait on the host: none, of as many as must where nothing fits
  /// otherwise, or of as many as it holds.
  Offload state = Offload::kNone;
  bool host_apart = true;  // memory of the host is not memory of the device
  MachineRates rates;
  bool predicted = false;  // `rates` and `times` are the machine's; otherwise only ratios are meaningful
};

/// With the context size of choose_context_size().
PlanInput plan_input(const PlanQuestion& question);
/// The sizes of context groups among which choose_context_size() chooses, ascending: the configured one, or with auto
/// all that are possible. Empty: none is possible.
std::vector<int> context_sizes(const PlanQuestion& question);

/// The plan with the shortest predicted step among the plans that fit; a shard group over several hosts counts as 5
/// percent slower. Among equal steps it has the smallest shard group, then the policy that divides least, then the most
/// rows per pass, then the most resident units. Tiles and offload are chosen where the step is a few percent shorter,
/// or where nothing fits without them. nullopt if no plan fits. An input without units, or a shard size that does not
/// divide world_size, is an internal error.
std::optional<TrainingPlan> find_plan(const PlanInput& input);
/// The plan that takes the least memory, whether it fits or not.
TrainingPlan least_plan(const PlanInput& input);
/// The same with the first of context_sizes() with which it fits; if none does with the first, or with the one that
/// needs least where that saves much. A question without any is an internal error.
TrainingPlan least_plan(const PlanQuestion& question);

/// The blocks that backward recomputes for parallel.recompute as a share, by fms-fsdp's rule (selective_checkpointing,
/// at its HEAD): with i from 1 and a threshold c that starts at 1/2, block i is recomputed if i * fraction >= c, and c
/// then rises by 1. The recomputed blocks are spread evenly: 1/3 of 15 blocks recomputes the second of every three
/// blocks. fraction <= 0 recomputes no block, >= 1 all; the comparison is in double, as in fms-fsdp. One entry per
/// block, kFull or kNone.
std::vector<Recompute> recompute_fraction(int num_blocks, double fraction);

}  // namespace trireme
