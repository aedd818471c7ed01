#pragma once
// Private to comm/world/: functions shared by the CPU and the GPU world.

#include "trireme/comm/communicator.h"

#include <memory>

namespace trireme {

/// After MPI_Init: rank, size, local rank and local size from MPI. ConfigError when MPI has fewer ranks than the
/// launcher started.
void adopt_mpi_rank(Launch& launch);

/// Collective, after adopt_mpi_rank(): numbers the ranks of mpi_job() and `launch` host by host.
Topology order_mpi_ranks(Launch& launch);

#ifdef TRIREME_WITH_CUDA
std::unique_ptr<World> join_gpu_world(const Launch& launch, Watchdog* watchdog);
#endif

}  // namespace trireme
