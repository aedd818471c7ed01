#pragma once
// Private to train/: whether the disk has room for a run's checkpoints, and what a stop leaves that saves none.

#include "trireme/base/error.h"
#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"
#include "trireme/ops/unit.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme {

/// Bytes of one checkpoint: masters and two moments in fp32 of what is trained, and what describes them.
uint64_t checkpoint_bytes(const std::vector<UnitSpec>& units, int world_size);

/// For rank 0. `directory`: of the checkpoints, need not be there; those of `run_id` in it are counted as room taken
/// already. WriteError when the checkpoints of regular saves do not fit. Where only a stop by a signal would save and
/// that does not fit: a sentence that warns of it. Otherwise empty.
std::string check_checkpoint_space(const Config& config, const std::filesystem::path& directory,
                                   const std::string& run_id, uint64_t bytes_of_one);

/// How a run ends that a signal stopped while output.save_on_stop is false.
struct StopWithoutSave {
  ExitCode code;        // kStopped: the same command goes on from a regular checkpoint; kStoppedUnsaved: from the start
  std::string message;  // what is lost
};
/// Collective. `completed`: steps done; no save is under way.
StopWithoutSave stop_without_save(Communicator& comm, const std::filesystem::path& checkpoints, int64_t completed);

}  // namespace trireme
