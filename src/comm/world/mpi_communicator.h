#pragma once
// Private to comm/world/: collectives of CPU tensors through MPI. MPI_THREAD_SERIALIZED: besides the thread that
// trains, autograd's thread may call MPI, never both at a time.

#include "host_exchange.h"
#include "trireme/comm/communicator.h"

// The C interface only: OpenMPI's removed C++ interface would have to be linked.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <cstdint>

namespace trireme {

/// Initialises MPI once per process. finalize_mpi() ends it; the watchdog sees it as a collective.
void initialize_mpi();
void finalize_mpi();
/// MPI_Abort. Returns if MPI is not initialised or already finalised.
void abort_mpi(int exit_code);

/// Whether MPI is initialised and not yet finalised.
bool mpi_runs();
int mpi_rank(MPI_Comm handle);
int mpi_size(MPI_Comm handle);

/// Largest number of elements of one MPI call: counts are ints, and OpenMPI multiplies them by the number of ranks in
/// int. Longer transfers are divided. A reference, for tests.
int64_t& mpi_piece_elements();

/// All ranks of the job in their order: MPI_COMM_WORLD, or a communicator in which World::join() has numbered them
/// anew. Never freed. A reference, for World.
MPI_Comm& mpi_job();

/// fp32, fp64, int32 and int64 are reduced natively. MPI has no 16-bit floats: these are summed in fp32 and rounded
/// once. Takes over `handle` (freed with the communicator unless it is MPI_COMM_WORLD). `name` for messages.
std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm handle, const char* name);

/// InternalError with MPI's own text when a call failed.
void check_mpi(int code, const char* call);

/// Host-side exchanges over MPI, for every communicator whose processes MPI started.
std::vector<double> mpi_all_reduce_host(MPI_Comm handle, std::vector<double> values, ReduceOp op);
std::vector<std::string> mpi_all_gather_host(MPI_Comm handle, const std::string& value);
/// Rank 0: all values in rank order. Others: empty.
std::vector<std::string> mpi_gather_host(MPI_Comm handle, const std::string& value);
/// Rank 0's value.
std::string mpi_broadcast_host(MPI_Comm handle, const std::string& value);
/// False when a rank did not arrive in time. Its barrier is then still under way, so the communicator must not be used.
bool mpi_barrier_within(MPI_Comm handle, double seconds);

/// Host values over `handle`, which the caller keeps; sub-groups made by split() own theirs.
std::unique_ptr<HostExchange> make_mpi_exchange(MPI_Comm handle);

}  // namespace trireme
