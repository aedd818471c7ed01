#pragma once
// finished.json in output.dir: the record of a finished run, for a run that continues it.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme {

/// The file in output.dir that a run holds locked while it trains there.
inline constexpr const char* kLockName = ".lock";

struct FinishedRun {
  int64_t step = 0;       // the last step: max_steps, or the step that reached the target
  int64_t max_steps = 0;  // train.max_steps
  std::string job = {};   // SLURM_JOB_ID of its process; empty: none
};

/// WriteError when it cannot be written.
void record_finish(const std::filesystem::path& output_dir, const FinishedRun& run);
/// nullopt if no run has finished. WriteError for a damaged record: output.dir may belong to another program.
std::optional<FinishedRun> finished_run(const std::filesystem::path& output_dir);

}  // namespace trireme
