#pragma once
// Steps on machines that are not there: the plan and its cost model (plan.h) for numbers of GPUs over many hosts.

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
  MachineRates rates;                                                                      // memory_gib: of one GPU
  /// The global batch of the configuration is that of the smallest number of GPUs and grows with them; otherwise it is
  /// the same for all (strong scaling).
  bool weak = false;
};

/// One number of GPUs under one policy.
struct SimulatedPlan {
  std::string policy;  // as it was asked for
  MemoryPlan plan;     // the fastest that fits; else the one that takes the least memory
  bool fits = true;
  double tokens_per_s = 0;           // per GPU; 0 where nothing fits, as the next
  std::optional<double> efficiency;  // tokens_per_s against that of the smallest number of GPUs that fits
};

struct SimulatedSize {
  int gpus = 1, hosts = 1;
  int64_t global_batch_size = 1, micro_batches = 1;  // micro-batches of one rank in one step
  std::vector<SimulatedPlan> plans;                  // in the order of SimulationOptions::policies
};

struct Simulation {
  std::vector<std::string> model;  // description lines
  int64_t seq_length = 0;
  /// No trained weight can be sharded, as with adapters: parallel.policy changes nothing, and only "auto" is there.
  bool policy_free = false;
  std::vector<SimulatedSize> sizes;
};

/// Reads the configuration as the trainer `family` does. `open` makes the model of a configuration, of whose directory
/// it reads the shape; data, weights and output.dir are not looked at. ConfigError: numbers of GPUs that fill no hosts,
/// a batch that does not divide over them (all of them are named, with the next batch that does), whatever
/// load_config() finds.
Simulation simulate(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                    const ConfigFamily& family, const std::function<std::unique_ptr<PlannedModel>(const Config&)>& open,
                    const SimulationOptions& options);

}  // namespace trireme
