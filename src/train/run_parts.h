#pragma once
// Private to train/: what the stages of a start (run.cpp) have made when the loop begins.

#include "mlperf.h"
#include "run_directory.h"
#include "task.h"
#include "trireme/comm/communicator.h"
#include "trireme/comm/rank_grid.h"
#include "trireme/config/config.h"
#include "trireme/ops/device.h"
#include "trireme/plan/plan.h"

#include <ATen/core/Tensor.h>

#include <functional>

namespace trireme {

/// The objects outlive the loop.
struct RunParts {
  const Config& config;
  World& world;
  RankGrid grid;  // with the plan's shard groups
  TrainingTask& task;
  const MemoryPlan& plan;
  at::ScalarType compute_dtype;
  const DeviceInfo& device;
  RunDirectory& directory;
  MlperfEvents& mlperf;
  std::function<void()> weights_loaded;  // called on every rank before the first step; may throw

  Communicator& comm() const { return world.communicator(); }
};

}  // namespace trireme
