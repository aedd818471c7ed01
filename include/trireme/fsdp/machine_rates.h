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
  double network_bytes = 45e9;  // the same from other hosts, through one network adapter of 400 Gb/s a GPU
  // Seconds of a collective over several hosts that do not depend on its size: its start, and each step of a ring and
  // of a tree between two GPUs of a host and between two hosts. Figures of NCCL's own model of its simple protocol
  // (src/graph/tuning.cc); a tree's step waits for a chunk. Inside one host they are part of step_overhead.
  double collective_start = 8.4e-6, ring_link_step = 3.4e-6, ring_network_step = 9.6e-6, tree_link_step = 28e-6,
         tree_network_step = 50e-6;
  double step_overhead = 4e-3;  // seconds of a step without a kernel, and in small kernels
  double memory_gib = 139.8;    // what CUDA reports as the device's memory; only a simulation reads it
};

/// Part of a network adapter's nominal rate that a collective of large messages reaches.
constexpr double kNetworkEfficiency = 0.9;

/// Rates of the device, by the name that its driver gives; those of an H200 where the table has no entry.
MachineRates machine_rates(std::string_view device_name);

}  // namespace trireme
