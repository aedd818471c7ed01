#pragma once
// Private to train/: the error message for memory that ran out: what uses it, and what would help.

#include "trireme/plan/plan.h"

#include <ATen/core/Tensor.h>

#include <exception>
#include <optional>
#include <string>

namespace trireme {

/// A sentence when `error` says that memory ran out (std::bad_alloc, LibTorch's allocators of CPU and GPU), with the
/// plan's parts, what is free now, and three settings to try; otherwise nothing.
std::optional<std::string> out_of_memory_message(const std::exception& error, const PlanQuestion& question,
                                                 const MemoryPlan& plan, at::Device device, int rank);

}  // namespace trireme
