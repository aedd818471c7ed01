#pragma once
// Predicts steps on other machines: the plan and its cost model (plan.h) for numbers of GPUs over many hosts.

#include "trireme/config/config.h"
#include "trireme/plan/plan.h"
#include "trireme/plan/rates.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct SimulationOptions {
  std::vector<int> gpus;  // ascending, each once; below gpus_per_host or multiples of it
  int gpus_per_host = 8;
  std::vector<std::string> policies = {"auto", "none", "optimizer", "gradients", "full"};  // parallel.policy of each
  std::vector<int> contexts;  // parallel.context_size, under each policy; empty: the configuration's
  MachineRates rates;         // memory_gib: of one GPU
  /// The configuration's global batch is that of the smallest number of GPUs and grows with the number of GPUs;
  /// otherwise it is the same for all (strong scaling).
  bool weak = false;
};

/// One number of GPUs under one policy and context size.
struct SimulatedPlan {
  std::string policy;         // as in SimulationOptions
  int context = 0;            // 0: the configuration's
  int64_t micro_batches = 1;  // of one rank in one step
  TrainingPlan plan;          // the fastest plan that fits; else the smallest plan
  bool fits = true;
  double tokens_per_s = 0;           // per GPU; 0 if no plan fits
  std::optional<double> efficiency;  // relative to the smallest number of GPUs that fits
};

struct SimulatedSize {
  int gpus = 1, hosts = 1;
  int64_t global_batch_size = 1;
  std::vector<SimulatedPlan> plans;  // contexts under each of SimulationOptions::policies
};

struct Simulation {
  std::vector<std::string> model;  // description lines
  int64_t seq_length = 0;
  /// No trained weight can be sharded, as with adapters: parallel.policy changes nothing, and only "auto" is simulated.
  bool policy_free = false;
  std::vector<SimulatedSize> sizes;
};

/// Reads the configuration as the trainer `program` does. `open` makes the model of a configuration and reads only its
/// shape; data, weights and output.dir are not read. ConfigError: numbers of GPUs that fill no whole hosts, numbers of
/// GPUs over which the batch does not divide (all are named, with the next batch that divides), context sizes that GPUs
/// or model do not allow, and problems of load_config().
Simulation simulate(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                    const ProgramKeys& program, const std::function<std::unique_ptr<PlannedModel>(const Config&)>& open,
                    const SimulationOptions& options);

}  // namespace trireme
