#pragma once
// The memory plan: which units stay whole, over how many ranks the others are cut, which blocks backward recomputes, and what that
// costs in bytes per rank. `--dry-run` prints the plan that the run uses, and every run compares it with the allocator's peak.

#include "trireme/ops/unit.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct PlanInput {
  const std::vector<UnitSpec>* units = nullptr;
  int world_size = 1;
  int64_t compute_bytes = 2;            // per element of the compute and storage dtype
  int64_t device_memory = 0;            // bytes a rank may use; 0 = unknown: everything "fits"
  int64_t overhead = 0;                 // context, library workspaces, communicator buffers
  int num_blocks = 0;
  // Activations of one micro-batch (all rows), in bytes.
  int64_t block_saved = 0, block_recomputed = 0, working_peak = 0, head = 0;
  int micro_batches = 1;                // of one rank in one step
  std::optional<int> shard_size;        // nullopt = auto
  std::optional<bool> recompute_all;    // nullopt = auto; false = none
};

struct MemoryPlan {
  int shard_size = 1;
  std::vector<bool> resident;       // per unit: whole although shard_size > 1
  std::vector<bool> recompute;      // per block
  // Bytes per rank.
  int64_t weights = 0, masters = 0, moments = 0, gradients = 0, gather_slots = 0, activations = 0, working = 0, overhead = 0;
  int64_t total() const { return weights + masters + moments + gradients + gather_slots + activations + working + overhead; }
  int64_t gathered_per_pass = 0;    // bytes a rank receives in one forward pass
  int64_t device_memory = 0;
  bool fits() const { return device_memory == 0 || total() <= device_memory; }
};

/// The plan with the fewest recomputed blocks, then the smallest shard group, then the most resident units that fits; ConfigError when
/// nothing fits, with the settings that would save most and how much.
MemoryPlan make_plan(const PlanInput& input);

/// The table for people.
std::string describe_plan(const MemoryPlan& plan, const std::vector<UnitSpec>& units);

}  // namespace trireme
