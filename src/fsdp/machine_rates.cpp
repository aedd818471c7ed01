#include "trireme/fsdp/machine_rates.h"

namespace trireme {

MachineRates machine_rates(std::string_view device_name) {
  MachineRates rates;
  if (device_name.find("H100") == std::string_view::npos) return rates;
  rates.name = "NVIDIA H100";
  rates.memory_bytes = 2.9e12;  // HBM3 at 3.35 TB/s, where an H200 has HBM3e at 4.8 TB/s
  rates.memory_gib = 79.1;
  return rates;
}

}  // namespace trireme
