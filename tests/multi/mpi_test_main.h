#pragma once
// The world of a test program that runs under mpirun.

#include "trireme/comm/communicator.h"

namespace trireme {
World& test_world();
}
