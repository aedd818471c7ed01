#pragma once
// Private to train/: the stage of a start that plans memory: one plan for all ranks, and what is said when memory runs
// out all the same.

#include "task.h"
#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/ops/device.h"
#include "trireme/plan/plan.h"
#include "trireme/train/training_program.h"

#include <exception>
#include <optional>
#include <string>

namespace trireme {

/// parallel.context_size of the run (choose_context_size()), before its rows are opened: it decides who reads which.
/// Collective, with the smallest device memory of all ranks. CollectiveError.
int run_context_size(const Config& config, const TrainingProgram& program, World& world, at::ScalarType compute_dtype);

class RunPlan {
 public:
  /// Collective. Plans with the smallest device memory of all ranks. CollectiveError (kConfig) when nothing fits, and
  /// naming ranks and hosts when they run different configurations, come to different plans or read different files.
  /// Config, task and world outlive it. `from_start`: of files_of_all_ranks().
  RunPlan(const Config& config, const TrainingTask& task, World& world, const RankGrid& grid,
          at::ScalarType compute_dtype, bool from_start);
  const TrainingPlan& plan() const { return plan_; }
  /// Of this rank.
  const DeviceInfo& device_info() const { return device_info_; }

  /// A sentence when `error` says that memory ran out (std::bad_alloc, LibTorch's allocators of CPU and GPU), with the
  /// plan's parts, what is free now, and three settings to try; otherwise nothing.
  std::optional<std::string> out_of_memory_message(const std::exception& error) const;

 private:
  World& world_;
  DeviceInfo device_info_;
  PlanQuestion question_;
  TrainingPlan plan_;
};

}  // namespace trireme
