#pragma once
// Measures the rates of a machine for the plan's cost model: of its GPUs and of the links between them.

#include "trireme/comm/communicator.h"
#include "trireme/plan/rates.h"

#include <set>
#include <string>
#include <vector>

namespace trireme {

struct Calibration {
  MachineRates rates;              // rates that were not measured are those of the built-in table
  std::set<std::string> measured;  // RateKey::name
  std::vector<std::string> notes;  // lines for the file: how each rate was measured, and its parts
};

/// Collective over all ranks of `world`, whose device is a GPU; the same result on each. All ranks work at the same
/// time, as in a run, and the slowest rank counts. `seconds`: length of each measurement, after a warm-up of the same
/// length in which clocks and temperature settle. Takes up to 6 GiB of device memory.
Calibration calibrate(World& world, double seconds);

}  // namespace trireme
