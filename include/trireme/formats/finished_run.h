#pragma once
// What a finished run leaves for one that goes on from it: finished.json in output.dir.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace trireme {

struct FinishedRun {
  int64_t step = 0;       // the last one: max_steps, or where the target was reached
  int64_t max_steps = 0;  // train.max_steps
};

/// WriteError when it cannot be written.
void record_finish(const std::filesystem::path& output_dir, const FinishedRun& run);
/// Nothing where no run has finished. WriteError for a damaged record: output.dir is not ours to use then.
std::optional<FinishedRun> finished_run(const std::filesystem::path& output_dir);

}  // namespace trireme
