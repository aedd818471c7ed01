#pragma once
// Resumable state: checkpoints/step-N/ with one safetensors file per rank and a manifest that is written last. A directory without a
// valid manifest is not a checkpoint.

#include "trireme/comm/communicator.h"
#include "trireme/fsdp/sharded_units.h"
#include "trireme/optim/optimizer.h"

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// Small numbers of the training loop that must survive.
struct LoopState {
  int64_t completed_steps = 0, evaluations = 0;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Collective. Writes into a temporary directory, fsyncs, renames; then removes older checkpoints but the newest `keep`.
void save_checkpoint_state(const std::filesystem::path& directory, Communicator& comm, const NamedTensors& tensors,
                           const LoopState& loop, int shard_size, int keep = 2);

/// Collective. Fills the tensors from this rank's file; sizes and hashes are checked. ModelError otherwise.
LoopState load_checkpoint_state(const std::filesystem::path& directory, Communicator& comm, const NamedTensors& tensors,
                                int shard_size);

/// Step of the newest directory with a valid manifest and files of the right sizes; says why newer ones are passed over.
/// ModelError when there are directories but none is whole.
std::optional<int64_t> newest_checkpoint(const std::filesystem::path& checkpoints);

}  // namespace trireme
