#pragma once
// The programs that train, one entry each: which keys its configuration takes, which task it trains, how its MLPerf log
// reads. Everything else follows from the entry; its main() is one line (src/apps/train_llama.cpp).

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

/// Makes the task of a run, given who asks and what the program's configuration takes. No GPU is touched. DataError,
/// ModelError, ConfigError.
using TaskFactory = std::function<std::unique_ptr<TrainingTask>(const Config&, const RankInfo&, const ConfigFamily&)>;

struct ModelFamily {
  ConfigFamily config;  // the program's name, its keys and their defaults
  const char* trains;   // for --help: "Llama-family models: LoRA adapters, or all parameters"
  const char* presets;  // folder of configurations to start from, in the repository
  TaskFactory make_task;
  std::unique_ptr<MlperfEvents> (*mlperf_events)(MlperfLog& log, const Config& config);
};

const std::vector<ModelFamily>& model_families();
/// The entry of a program; InternalError when there is none.
const ModelFamily& model_family(std::string_view program);

/// The model of a configuration without a run, for a plan of ranks with a GPU each: data files are not opened and need
/// not be there.
std::unique_ptr<PlannedModel> model_to_plan(const Config& config, const ModelFamily& family);

}  // namespace trireme
