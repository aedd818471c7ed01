#include "trireme/formats/checkpoint/finished_run.h"

#include "trireme/base/error.h"
#include "trireme/base/file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace trireme {

namespace {
constexpr const char* kName = "finished.json";
}

void record_finish(const std::filesystem::path& output_dir, const FinishedRun& run) {
  write_file_atomic(
      output_dir / kName,
      nlohmann::json({{"step", run.step}, {"max_steps", run.max_steps}, {"slurm_job_id", run.job}}).dump(2) + "\n");
}

std::optional<FinishedRun> finished_run(const std::filesystem::path& output_dir) {
  const std::filesystem::path path = output_dir / kName;
  if (!std::filesystem::exists(path)) return std::nullopt;
  const auto record = nlohmann::json::parse(read_text_file(path, ExitCode::kCannotWrite, 4096), nullptr,
                                            /*allow_exceptions=*/false);
  const auto number = [&](const char* key) -> int64_t {
    if (!record.is_object() || !record.contains(key) || !record[key].is_number_integer())
      throw WriteError(fmt::format("{} is damaged: it should hold the integers step and max_steps", path.string()));
    return record[key];
  };
  FinishedRun run{number("step"), number("max_steps")};
  if (record.contains("slurm_job_id") && record["slurm_job_id"].is_string()) run.job = record["slurm_job_id"];
  return run;
}

}  // namespace trireme
