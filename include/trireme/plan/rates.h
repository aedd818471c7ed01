#pragma once
// What a kind of machine sustains: the constants of the plan's cost model, and the files that hold them.

#include "trireme/config/config.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

struct MachineRates {
  std::string name = "NVIDIA H200";
  std::string file{};                               // that the rates were read from; empty: the built-in table
  double bf16_flops = 675e12, fp8_flops = 1390e12;  // products of a block's matrices, FLOP/s
  // Forward and backward together, heads of 128 without dropout; of a causal mask the half that is computed counts.
  double attention_flops = 500e12;
  double memory_bytes = 3.9e12;  // read and written by kernels that do little else, bytes/s
  double link_bytes = 150e9;     // received by one GPU from others of its host in a collective, bytes/s
  double network_bytes = 45e9;   // the same from other hosts, through one network adapter of 400 Gb/s a GPU
  /// Fraction of a collective's time by which it slows the products that run at the same time: both use memory
  /// bandwidth, power and multiprocessors.
  double interference = 0.28;
  // Seconds of a collective over several hosts that do not depend on its size: its start, and each step of a ring and
  // of a tree between two GPUs of a host and between two hosts. Figures of NCCL's own model of its simple protocol
  // (src/graph/tuning.cc); a tree's step waits for a chunk. Inside one host they are part of step_overhead.
  double collective_start = 8.4e-6, ring_link_step = 3.4e-6, ring_network_step = 9.6e-6, tree_link_step = 28e-6,
         tree_network_step = 50e-6;
  double step_overhead = 1e-3;     // seconds of a step without a kernel, and in small kernels
  double block_overhead = 0.1e-3;  // the same, for each block of the model
  /// Part of computation and recomputation by which several ranks wait for the slowest of them: fitted to BERT on four
  /// H200s.
  double waiting = 0.015;
  double memory_gib = 139.8;  // what CUDA reports as the device's memory; only a simulation reads it
};

/// A number of MachineRates as a file of rates names it, and the range in which it can be true of a machine.
struct RateKey {
  const char* name;
  double MachineRates::* value;
  double least, most;
  const char* meaning;
};
const std::array<RateKey, 16>& rate_keys();

/// Part of attention_flops with heads of another size, or with dropout: what `scripts/bench/attention.sh` shows on an
/// H200 for sequences of 2,048 (128) and 512 to 2,048 (64).
constexpr double attention_part(int64_t head_size, bool dropout) {
  if (head_size >= 128) return dropout ? 0.89 : 1;
  return dropout ? 0.58 : 0.75;
}

/// Part of a network adapter's nominal rate that a collective of large messages reaches.
constexpr double kNetworkEfficiency = 0.9;

/// Whether the built-in table has rates of the device. The name is the one that its driver gives.
bool has_machine_rates(std::string_view device_name);
/// Rates of the device from the built-in table; those of an H200 where it has none.
MachineRates machine_rates(std::string_view device_name);

/// "rates: NVIDIA H200, built-in table", or of which file; says what to do where the rates are of another kind of
/// machine than `device_name`. An empty name: the device is not known.
std::string describe_rates(const MachineRates& rates, std::string_view device_name);

/// What `trireme calibrate` writes, and parallel.rates and `trireme simulate --rates` read.
/// YAML: `name`, the device's name, and any of rate_keys(). A rate that the file does not give is that of the built-in
/// table for the name. ConfigError with file, line and column of everything that is wrong.
MachineRates read_rates(const std::filesystem::path& file);

/// The rates of a run on this device: those of parallel.rates, or of the built-in table.
MachineRates run_rates(const Config& config, std::string_view device_name);

/// The file's text: `notes` as comments, then the name and those rates that are in `measured`, by RateKey::name.
std::string rates_text(const MachineRates& rates, const std::set<std::string>& measured,
                       const std::vector<std::string>& notes);

}  // namespace trireme
