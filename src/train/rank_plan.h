#pragma once
// Private to train/: one memory plan for all ranks.

#include "trireme/comm/communicator.h"
#include "trireme/plan/plan.h"

namespace trireme {

/// Collective. The plan for `question` with the smallest device memory of all ranks, the same on each. CollectiveError
/// (kConfig) when nothing fits, and naming ranks and hosts when they run different configurations or come to different
/// plans, as model or data files that differ between hosts make them.
MemoryPlan plan_for_all_ranks(PlanQuestion question, World& world);

}  // namespace trireme
