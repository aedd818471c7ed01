#pragma once
// Private to train/: whether the disk has room for a run's checkpoints.

#include "trireme/config/config.h"
#include "trireme/nn/unit.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

/// Bytes of one checkpoint: masters and two moments in fp32 of what is trained, and what describes them.
uint64_t checkpoint_bytes(const std::vector<UnitSpec>& units, int world_size);

/// For rank 0. `directory`: of the checkpoints, need not be there; the space that those of `run_id` take is
/// available to later ones. WriteError when the checkpoints of regular saves do not fit. Where only a stop by a signal
/// would save and that does not fit: a warning. Otherwise empty.
std::string check_checkpoint_space(const Config& config, const std::filesystem::path& directory,
                                   const std::string& run_id, uint64_t bytes_of_one);

}  // namespace trireme
