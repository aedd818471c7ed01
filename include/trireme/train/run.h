#pragma once
// From the command line to a finished run: what every trainer's main() calls.

#include "trireme/train/task.h"

#include "trireme/config/config.h"

#include <functional>
#include <memory>

namespace trireme {

/// Makes the task of one model family, given who we are. No GPU is touched.
using TaskFactory =
    std::function<std::unique_ptr<TrainingTask>(const Config&, int rank, int world_size, at::Device, at::ScalarType)>;

std::unique_ptr<TrainingTask> make_causal_lm_task(const Config& config, int rank, int world_size, at::Device device,
                                                  at::ScalarType compute_dtype);

std::unique_ptr<TrainingTask> make_masked_lm_task(const Config& config, int rank, int world_size, at::Device device,
                                                  at::ScalarType compute_dtype);

struct Application {
  const char* name;  // of the program
  Program program;   // whose keys its configuration may have
  TaskFactory make_task;
};

/// `--config FILE [--set a.b.c=value …] [--dry-run [--ranks N] [--device-memory-gib X]] [--print-config] [--version]
/// [--help]`. Returns the process exit code; every failure ends in one sentence on stderr.
int train_main(int argc, char** argv, const Application& application);

}  // namespace trireme
