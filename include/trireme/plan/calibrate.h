#pragma once
// Measures what the plan's cost model knows of a machine: the rates of its GPUs and of the links between them.

#include "trireme/comm/communicator.h"
#include "trireme/plan/rates.h"

#include <set>
#include <string>
#include <vector>

namespace trireme {

struct Calibration {
  MachineRates rates;              // what was not measured is that of the built-in table
  std::set<std::string> measured;  // RateKey::name
  std::vector<std::string> notes;  // how, and the parts of what was measured, a line each
};

/// Collective over all ranks of `world`, whose device is a GPU; the same result on each. Every rank works at the same
/// time, as in a run, and the slowest one counts. `seconds`: how long each measurement lasts, after as long a time in
/// which clocks and temperature settle. Takes up to 6 GiB of device memory.
Calibration calibrate(World& world, double seconds);

}  // namespace trireme
