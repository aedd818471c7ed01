#pragma once
// The programs that train, one entry each: which keys its configuration takes, which task it trains, and its MLPerf
// log. The rest of a program follows from its entry. A ModelFamily is such a program (train_llama); the families of
// decoders (llama, qwen2) are in models/decoder/family.h.

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
using TaskFactory = std::function<std::unique_ptr<TrainingTask>(const Config&, const RankInfo&, const ConfigFamily&)>;

struct ModelFamily {
  ConfigFamily config;  // the program's name, its keys and their defaults
  const char* trains;   // for --help: "Llama-family models: LoRA adapters, or all parameters"
  const char* presets;  // folder of configurations to start from, in the repository
  TaskFactory make_task;
  std::unique_ptr<MlperfEvents> (*mlperf_events)(MlperfLog& log, const Config& config);
};

const std::vector<ModelFamily>& model_families();
/// The entry of a program; InternalError for an unknown program.
const ModelFamily& model_family(std::string_view program);

/// The model of a configuration without a run, for a plan of ranks with a GPU each. Data files are not opened and need
/// not exist.
std::unique_ptr<PlannedModel> model_to_plan(const Config& config, const ModelFamily& family);

/// From the command line to a finished run: what a program's main() calls. Defined in src/train/run.cpp.
/// `--config FILE [--set a.b.c=value …] [--dry-run [--ranks N] [--device-memory-gib X]] [--print-config] [--version]
/// [--help]`. Returns the process exit code; every failure ends in one sentence on stderr.
int train_main(int argc, char** argv, const ModelFamily& family);

}  // namespace trireme
