#pragma once
// --dry-run, and the plan and banner that a real run shares with it.

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/fsdp/plan.h"
#include "trireme/train/command_line.h"
#include "trireme/train/device.h"
#include "trireme/train/run.h"
#include "trireme/train/task.h"

#include <string>
#include <vector>

namespace trireme {

/// What a GPU process loses to the context and the libraries before the first tensor, and what the allocator cannot
/// use; with several ranks also NCCL's buffers and the workspaces of concurrent streams.
inline int64_t gpu_overhead(int ranks) { return int64_t{ranks > 1 ? 8 : 3} << 30; }

at::ScalarType compute_dtype(const Config& config, bool use_gpu);

/// What make_plan() needs, for this configuration on `world_size` ranks (device memory and overhead are the caller's).
PlanInput plan_input(const Config& config, const TrainingTask& task, int world_size, at::ScalarType dtype);

/// Lines at the start of a run: version, ranks, devices, model, data, steps, cost, plan.
std::vector<std::string> run_banner(const Config& config, const TrainingTask& task, const MemoryPlan& plan,
                                    const DeviceInfo& device, World& world);

/// Resolves and checks everything, prints the plan and the cost of a step on stdout. Returns the exit code.
int dry_run(const Config& config, const CommandLine& line, const Launch& launch, const TaskFactory& make_task);

}  // namespace trireme
