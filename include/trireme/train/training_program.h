#pragma once
// The programs that train, one entry each: which keys its configuration takes, which task it trains, and its MLPerf
// log. The rest of a program follows from its entry. Families of decoders (llama, qwen2) are in
// models/decoder/family.h.

#include "trireme/config/config.h"

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace trireme {

class MlperfEvents;
class MlperfLog;
class PlannedModel;
class TrainingTask;
struct RankInfo;

/// Makes the task of a run for a rank and the program's configuration. No GPU is touched. DataError, ModelError,
/// ConfigError.
using TaskFactory = std::function<std::unique_ptr<TrainingTask>(const Config&, const RankInfo&, const ProgramKeys&)>;

struct TrainingProgram {
  ProgramKeys keys;     // the program's name, its keys and their defaults
  const char* trains;   // for --help: "Llama-family models: LoRA adapters, or all parameters"
  const char* presets;  // folder of configurations to start from, in the repository
  TaskFactory make_task;
  std::unique_ptr<MlperfEvents> (*mlperf_events)(MlperfLog& log, const Config& config);
};

const std::vector<TrainingProgram>& training_programs();
/// The entry of a program; InternalError for an unknown program.
const TrainingProgram& training_program(std::string_view name);

/// The model of a configuration without a run, for a plan of ranks with a GPU each. Data files are not opened and need
/// not exist.
std::unique_ptr<PlannedModel> model_to_plan(const Config& config, const TrainingProgram& program);

/// From the command line to a finished run: what a program's main() calls. Defined in src/train/run.cpp.
/// `--config FILE [--set a.b.c=value …] [--dry-run [--ranks N] [--device-memory-gib X]] [--print-config] [--version]
/// [--help]`. Returns the process exit code; every failure ends in one sentence on stderr.
int train_main(int argc, char** argv, const TrainingProgram& program);

}  // namespace trireme
