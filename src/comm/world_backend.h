#pragma once
// Private to comm/: what the CPU and the GPU worlds share.

#include "trireme/comm/communicator.h"

#include <memory>
#include <string>

namespace trireme {

std::string host_name();

/// A time limit from the environment, or `otherwise`; ConfigError when it is not a positive number.
double positive_seconds(const char* variable, double otherwise);

/// After MPI_Init: rank, size and their counterparts on this host as MPI has them. ConfigError when MPI knows fewer
/// ranks than the launcher started.
void adopt_mpi_rank(Launch& launch);

/// "rank 3 on node7: reason" on stderr.
void print_failure(int rank, const std::string& reason);

#ifdef TRIREME_WITH_CUDA
std::unique_ptr<World> join_gpu_world(const Launch& launch);
#endif

}  // namespace trireme
