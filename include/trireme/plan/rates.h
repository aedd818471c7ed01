#pragma once
// The rates of a kind of machine: the constants of the plan's cost model, and the files that hold them.

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
  std::string file{};                               // source of the rates; empty: the built-in table
  bool measured = true;                             // false: derived from a datasheet (plan/devices.h)
  int capability = 90;                              // compute capability, 10 * major + minor
  double bf16_flops = 675e12, fp8_flops = 1390e12;  // products of a block's matrices, FLOP/s
  // Forward and backward together, heads of 128 without dropout; under a causal mask only the computed half counts.
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
  double block_overhead = 0.1e-3;  // the same for each block of the model
  /// Wait of several ranks for the slowest rank, as a part of computation and recomputation; fitted to BERT on four
  /// H200s.
  double waiting = 0.015;
  double memory_gib = 139.8;  // device memory as CUDA reports it; only a simulation reads it
  // Copies between the device and pinned memory of its host, in each direction, bytes/s: PCIe 5 x16, 63 GB/s nominal.
  double host_bytes = 50e9;
  double host_memory_gib = 128;  // memory of the host for each of its devices; only simulations and dry runs read it
};

/// A number of MachineRates: its name in a file of rates, and its plausible range.
struct RateKey {
  const char* name;
  double MachineRates::* value;
  double least, most;
  const char* meaning;
};
const std::array<RateKey, 18>& rate_keys();

/// Part of attention_flops, the rate of rows of 4,096 tokens and heads of 128, that other shapes reach, as measured on
/// an H200: by `scripts/bench/attention.sh` for heads of 64 and dropout, in rows of 131,072 and 262,144 tokens for the
/// length, with which the part of a kernel's time outside its main loop vanishes.
constexpr double attention_part(int64_t head_size, bool dropout, int64_t tokens) {
  const double length = tokens <= 4096 ? 1 : 1.18 / (1 + 0.18 * 4096 / static_cast<double>(tokens));
  if (head_size >= 128) return length * (dropout ? 0.89 : 1);
  return length * (dropout ? 0.58 : 0.75);
}

/// Part of a network adapter's nominal rate that a collective of large messages reaches.
constexpr double kNetworkEfficiency = 0.9;

/// Whether the built-in table has rates of the device. The name is that of its driver.
bool has_machine_rates(std::string_view device_name);
/// Rates of the device from the built-in table; an H200's rates for unknown devices.
MachineRates machine_rates(std::string_view device_name);

/// "rates: NVIDIA H200, built-in table", or the file. Says what to do if the rates belong to another kind of machine
/// than `device_name`; an empty name: the device is unknown.
std::string describe_rates(const MachineRates& rates, std::string_view device_name);

/// Reads a file of rates (parallel.rates, `trireme simulate --rates`), as `trireme calibrate` writes it. YAML: `name`,
/// the device's name, and any of rate_keys(). The built-in table for the name supplies the other rates. ConfigError
/// with file, line and column of every problem.
MachineRates read_rates(const std::filesystem::path& file);

/// The rates of a run on this device: from parallel.rates, or from the built-in table.
MachineRates run_rates(const Config& config, std::string_view device_name);

/// The file's text: `notes` as comments, then the name and the rates in `measured` (RateKey::name).
std::string rates_text(const MachineRates& rates, const std::set<std::string>& measured,
                       const std::vector<std::string>& notes);

}  // namespace trireme
