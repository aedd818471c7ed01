#pragma once
// Private to plan/: one candidate of the search, its memory (memory.cpp) and its time (cost.cpp).

#include "trireme/comm/rank_grid.h"
#include "trireme/plan/search.h"

#include <cstdint>
#include <vector>

namespace trireme {

/// The decisions of a plan; everything else follows from them.
struct Candidate {
  int shard_size = 1;
  ShardPolicy policy = ShardPolicy::kNone;
  int rows = 1, resident = 0;
  /// Numbers of blocks with each Recompute whose values stay on the device; the others recompute nothing, or:
  int norms = 0, mlp = 0, attention = 0, full = 0;
  /// Numbers of blocks whose values go to the host. host_mlp: the MLP's first projection, instead of its recomputation;
  /// no other block is recomputed whole then.
  int host_mlp = 0, host_attention = 0, host_full = 0;
  int64_t tile = 0;  // tokens; 0: no tiles

  int host() const { return host_mlp + host_attention + host_full; }
  int whole() const { return attention + full + host_attention + host_full; }
};

/// The part of a shard size's and policy's memory that does not depend on the other decisions.
struct PolicyMemory {
  RankGrid grid;       // its shard groups divide the trained state
  TrainingPlan bytes;  // with no resident unit and no activations
  int64_t largest_slot = 0;
  int64_t whole_elements = 0, shard_elements = 0;   // of trained units' gradients
  int64_t copied_bytes = 0;                         // read and written to make their compute copies or codes
  int64_t host_elements = 0;                        // of units whose state is on the host
  int64_t from_host = 0;                            // bytes to the device in a step; back come no more
  int64_t nf4_part = 0;                             // elements that are expanded at a time
  int64_t passing = 0;                              // master weights beside the pieces of the pass
  int64_t largest_elements = 0;                     // of one unit's whole gradient
  int64_t gathered_trained = 0, whole_trained = 0;  // bytes of compute copies: gathered for each use, after each step
  std::vector<size_t> gathered;                     // indices of the units that could stay whole
  std::vector<int64_t> extra;                       // bytes that each unit of `gathered` adds if it stays whole
  // Trained units: all; with divided state; with weights that are gathered for each use.
  int trained_units = 0, divided_units = 0, gathered_units = 0;

  int frozen_gathered(const Candidate& candidate) const {
    return static_cast<int>(gathered.size()) - candidate.resident;
  }
  /// Spreads the resident units evenly between sharded units, so that a gather can overlap with more than one block.
  bool is_resident(size_t index, int resident) const {
    const auto r = static_cast<size_t>(resident), count = gathered.size();
    return (index + 1) * r / count > index * r / count;
  }
};
/// `host_units`: of the first trained units master weights and moments are on the host.
PolicyMemory policy_memory(const PlanInput& input, int shard_size, ShardPolicy policy, int host_units = 0);

/// The bytes of a candidate: its plan without the lists of units and blocks, and without the cost.
TrainingPlan memory_of(const PlanInput& input, const PolicyMemory& storage, const Candidate& candidate);
/// Adds the transposed codes of as many units as there is memory for beside the choices of `plan`: they save the least
/// time of all that memory is good for. Counts the bytes that dgrad transposes in a step with them.
void keep_transposed(const PlanInput& input, TrainingPlan& plan);
/// Seconds of one pass in which backward computes again, and in which tiles are joined.
double recomputation_time(const PlanInput& input, const Candidate& candidate);
/// Copies to the host and back in one pass: their seconds, and the part that computation does not hide. A block's
/// values leave during the forward of the next block, and come back during the backward of the next block.
struct Transfer {
  double seconds = 0, exposed = 0;
};
Transfer host_transfer(const PlanInput& input, const Candidate& candidate);
/// The predicted step of `plan`, which memory_of() has made.
StepCost cost_of(const PlanInput& input, const PolicyMemory& storage, const Candidate& candidate,
                 const TrainingPlan& plan);

}  // namespace trireme
