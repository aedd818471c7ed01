#pragma once
// output.dir: who owns it, what is in it, and whether a run may start or go on there.

#include "trireme/comm/communicator.h"
#include "trireme/config/config.h"

#include <filesystem>
#include <optional>
#include <string>

namespace trireme {

class RunDirectory {
 public:
  /// Collective. Rank 0 creates the directory, takes its lock and writes config.yaml. A directory of another run, of a finished run, or
  /// one that another process is training in is a WriteError on all ranks, naming what is there. The same configuration with
  /// checkpoints is resumed.
  RunDirectory(const Config& config, World& world);
  ~RunDirectory();
  const std::filesystem::path& path() const { return path_; }
  /// Step of the newest whole checkpoint, if there is one to resume from.
  std::optional<int64_t> resume_step() const { return resume_step_; }
  std::filesystem::path checkpoint_path(int64_t step) const;

 private:
  void open_as_rank_zero(const Config& config);
  std::filesystem::path path_;
  int lock_ = -1;
  std::optional<int64_t> resume_step_;
};

}  // namespace trireme
