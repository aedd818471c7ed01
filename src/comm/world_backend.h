#pragma once
// Private to comm/: what the CPU and the GPU worlds share.

#include "trireme/comm/communicator.h"

#include <memory>

namespace trireme {

/// After MPI_Init: rank, size and their counterparts on this host as MPI has them. ConfigError when MPI knows fewer
/// ranks than the launcher started.
void adopt_mpi_rank(Launch& launch);

#ifdef TRIREME_WITH_CUDA
std::unique_ptr<World> join_gpu_world(const Launch& launch, Watchdog* watchdog);
#endif

}  // namespace trireme
