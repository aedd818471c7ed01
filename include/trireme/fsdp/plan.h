#pragma once
// The memory plan: which units stay whole, over how many ranks the others are sharded, which blocks are recomputed in
// backward, how many rows of a micro-batch go through the model at a time, and what that costs in bytes per rank.
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
  std::shared_ptr<const void> owner;  // of the units, where nobody else keeps them
  int world_size = 1;
  int64_t compute_bytes = 2;   // per element of the compute and storage dtype
  int64_t gradient_bytes = 4;  // per element of a gradient that one pass makes; several passes add up in fp32
  bool frozen_fp8 = false;     // quantisable parameters of frozen units take one byte
  int64_t device_memory = 0;   // bytes a rank may use; 0 = unknown: everything "fits"
  int64_t overhead = 0;        // context, library workspaces, communicator buffers
  int num_blocks = 0;
  // Bytes of one row. What a block keeps without recomputation, when its MLP's widest tensor is formed again (0: it
  // cannot), and when all of it is; what the busiest moment of backward and the head need beside that.
  int64_t block_saved = 0, block_saved_mlp = 0, block_recomputed = 0, working_peak = 0, head = 0;
  int64_t working_fixed = 0;           // working memory that does not grow with the rows (a transposed weight)
  int rows = 1;                        // of a micro-batch
  int micro_batches = 1;               // of one rank in one step
  std::optional<int> shard_size;       // nullopt = auto
  std::optional<Recompute> recompute;  // nullopt = auto: as little as fits
  // Seconds that the choice weighs: forward of a block and of its gate and up projections for one row; a gathered byte.
  double block_forward_s = 1.0, mlp_forward_s = 0.5, gathered_byte_s = 0.0;
};

struct MemoryPlan {
  int shard_size = 1;
  int rows_per_pass = 1;             // rows that go through the model at a time; divides the micro-batch
  std::vector<bool> resident;        // per unit: whole although shard_size > 1
  std::vector<Recompute> recompute;  // per block
  // Bytes per rank.
  int64_t weights = 0, masters = 0, moments = 0, gradients = 0, gather_slots = 0, activations = 0, working = 0,
          overhead = 0;
  int64_t total() const {
    return weights + masters + moments + gradients + gather_slots + activations + working + overhead;
  }
  int64_t gathered_per_pass = 0;   // bytes a rank receives in one forward pass
  int64_t device_memory = 0;       // 0: not known
  int64_t accumulated_passes = 1;  // passes whose gradients add up before they are reduced
  /// What a plan leaves of the device: the counts above are estimates, and the allocator loses some to fragments.
  int64_t headroom() const { return device_memory / 50; }
  /// Bytes that are lacking; 0 or less: it fits.
  int64_t lacking() const { return device_memory == 0 ? 0 : total() + headroom() - device_memory; }
  bool fits() const { return lacking() <= 0; }
};

/// The plan that loses the least time to recomputation and gathers among those that fit; of equals the smallest shard
/// group, then the most rows a pass, then the most resident units. nullopt when nothing fits.
std::optional<MemoryPlan> find_plan(const PlanInput& input);
/// The same; ConfigError when nothing fits.
MemoryPlan make_plan(const PlanInput& input);
/// The plan that takes the least memory, fitting or not.
MemoryPlan least_plan(const PlanInput& input);

/// "the run needs 80.0 GiB per rank (…) and 2 % of headroom, 79.1 GiB is there": of a plan that does not fit.
std::string describe_need(const MemoryPlan& plan);

/// The table for people.
std::string describe_plan(const MemoryPlan& plan, const std::vector<UnitSpec>& units);

}  // namespace trireme
