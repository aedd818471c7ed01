#pragma once
// The memory plan: which units stay whole, over how many ranks the others are sharded, which blocks backward
// recomputes, how many rows of a micro-batch are processed at a time, and how many bytes per rank that takes.
// `--dry-run` prints the plan that the run uses, and every run compares it with the allocator's peak.

#include "trireme/nn/recompute.h"
#include "trireme/nn/unit.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct PlanInput {
  const std::vector<UnitSpec>* units = nullptr;
  std::shared_ptr<const void> owner;  // keeps `units` alive if nothing else does
  int world_size = 1;
  int64_t compute_bytes = 2;   // per element of the compute and storage dtype
  int64_t gradient_bytes = 4;  // per element of a gradient of one pass; several passes are summed in fp32
  bool frozen_fp8 = false;     // quantisable parameters of frozen units take one byte per element
  int64_t device_memory = 0;   // bytes a rank may use; 0: unknown, every plan fits
  int64_t overhead = 0;        // context, library workspaces, communicator buffers
  int num_blocks = 0;
  // Bytes per row. What a block keeps: without recomputation; if its MLP's widest tensor is recomputed (0: not
  // possible); if all of it is recomputed. What is needed in addition: at the peak of backward; by the head.
  int64_t block_saved = 0, block_saved_mlp = 0, block_recomputed = 0, working_peak = 0, head = 0;
  int64_t working_fixed = 0;              // working memory that does not depend on the rows (a transposed weight)
  int rows = 1;                           // of a micro-batch
  int micro_batches = 1;                  // of one rank in one step
  std::optional<int> shard_size;          // nullopt = auto
  std::optional<Recompute> recompute;     // nullopt = auto: the least that fits
  std::optional<double> recompute_share;  // with recompute kFull: of this share of the blocks (recompute_fraction.h)
  // Seconds: forward of a block for one row, of its gate and up projections for one row, gathering of one byte.
  double block_forward_s = 1.0, mlp_forward_s = 0.5, gathered_byte_s = 0.0;
};

struct MemoryPlan {
  int shard_size = 1;
  int rows_per_pass = 1;             // rows processed at a time; divides the rows of a micro-batch
  std::vector<bool> resident;        // per unit: stays whole although shard_size > 1
  std::vector<Recompute> recompute;  // per block
  // Bytes per rank.
  int64_t weights = 0, masters = 0, moments = 0, gradients = 0, gather_slots = 0, activations = 0, working = 0,
          overhead = 0;
  int64_t total() const {
    return weights + masters + moments + gradients + gather_slots + activations + working + overhead;
  }
  int64_t gathered_per_pass = 0;   // bytes a rank receives in one forward pass
  int64_t device_memory = 0;       // 0: unknown
  int64_t accumulated_passes = 1;  // passes whose gradients are summed before they are reduced
  /// Memory that a plan must leave free: its byte counts are estimates, and the allocator loses some memory to
  /// fragmentation.
  int64_t headroom() const { return device_memory / 50; }
  /// Bytes by which the plan exceeds the device's memory; 0 or less: it fits.
  int64_t lacking() const { return device_memory == 0 ? 0 : total() + headroom() - device_memory; }
  bool fits() const { return lacking() <= 0; }
};

/// Of the plans that fit, the one that loses the least time to recomputation and gathers; among equal ones that with
/// the smallest shard group, then with the most rows per pass, then with the most resident units. nullopt if no plan
/// fits. An input without units, or a shard size that does not divide world_size, is an internal error.
std::optional<MemoryPlan> find_plan(const PlanInput& input);
/// The same; throws ConfigError with describe_need() if no plan fits.
MemoryPlan make_plan(const PlanInput& input);
/// The plan that takes the least memory, whether it fits or not.
MemoryPlan least_plan(const PlanInput& input);

/// For a plan that does not fit: "the run needs 80.0 GiB per rank and 1.6 GiB of headroom, 79.1 GiB is available (…)".
std::string describe_need(const MemoryPlan& plan);

/// The plan as a table for the console and the log.
std::string describe_plan(const MemoryPlan& plan, const std::vector<UnitSpec>& units);

}  // namespace trireme
