#pragma once
// What a kind of machine sustains: the constants of the plan's cost model.

#include <string>
#include <string_view>

namespace trireme {

struct MachineRates {
  std::string name = "NVIDIA H200";
  double bf16_flops = 675e12, fp8_flops = 1390e12;  // products of a block's matrices, FLOP/s
  double attention_flops = 500e12;                  // forward and backward together, causal half counted
  double memory_bytes = 3.9e12;                     // read and written by kernels that do little else, bytes/s
  double link_bytes = 150e9;    // received by one GPU from others of its host in a collective, bytes/s
  double network_bytes = 45e9;  // the same from other hosts
  double step_overhead = 4e-3;  // seconds of a step without a kernel, and in small kernels
};

/// Rates of the device, by the name that its driver gives; those of an H200 where the table has no entry.
MachineRates machine_rates(std::string_view device_name);

}  // namespace trireme
