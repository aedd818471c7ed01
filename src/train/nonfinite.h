#pragma once
// Private to train/: where numbers are not finite: in the gradients of a step, computed a second time, and in the state
// of a run.

#include "trireme/comm/communicator.h"
#include "trireme/fsdp/sharded_units.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// With TRIREME_FAULT set: from now on backward asks for faults "gradient:NAME" at the step (from 1) that
/// `current_step` returns. Without: backward is not observed.
void observe_gradient_faults(ShardedUnits& units, int rank, std::function<int64_t()> current_step);

/// A second computation of a step, and how it differs from the first.
struct StepReplay {
  int64_t step = 0;                     // from 1
  std::function<double()> compute;      // forward and backward: this rank's loss. Collective
  std::optional<int64_t> weights_step;  // where the weights are others now: those after this step
  at::Tensor loss_scale;                // where there is a dynamic one
};

/// Runs the replay and says which parameters of which ranks have gradients that are not finite, as a part of a
/// sentence, the same on all ranks. The gradients are cleared, and backward is no longer observed. Collective.
std::string find_nonfinite_gradients(ShardedUnits& units, World& world, const StepReplay& replay);

/// The first of these tensors, over all ranks, that is not finite: "NAME on rank R is not finite", on rank 0; another
/// sentence on the others. Empty on all ranks: all are finite. Collective.
std::string find_nonfinite_state(const std::vector<std::pair<std::string, at::Tensor>>& state, Communicator& comm);

}  // namespace trireme
