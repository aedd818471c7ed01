#pragma once
// Private to train/: --dry-run, and the banner at the start of a real run, which has the same lines of cost and plan.

#include "task.h"
#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/ops/device.h"
#include "trireme/plan/plan.h"
#include "trireme/plan/precision.h"
#include "trireme/train/command_line.h"
#include "trireme/train/training_program.h"

#include <string>
#include <vector>

namespace trireme {

/// Lines at the start of a run: version, ranks, devices, model, data, steps, cost, plan.
std::vector<std::string> run_banner(const Config& config, const TrainingTask& task, const TrainingPlan& plan,
                                    const DeviceInfo& device, World& world);

/// Resolves and checks everything, prints the plan and the cost of a step on stdout. Returns the exit code.
int dry_run(const Config& config, const CommandLine& line, const Launch& launch, const TrainingProgram& program);

}  // namespace trireme
