#pragma once
// Rank, size and launcher of this process, from the environment alone, before any MPI call (MPI_Init aborts under `srun
// --mpi=none`).

#include <functional>
#include <string>

namespace trireme {

struct Launch {
  enum class Kind {
    kAlone,        // no launcher: one rank
    kMpi,          // mpirun, or srun --mpi=pmix: MPI_Init gives rank and size
    kSlurm,        // srun --mpi=none: SLURM_* variables, bootstrap through a key store
    kEnvironment,  // RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
  } kind = Kind::kAlone;
  int rank = 0, world_size = 1, local_rank = 0, local_world_size = 1;
  std::string master_address;  // of rank 0; empty for kAlone and kMpi
  int master_port = 0;
  std::string description() const;  // "srun --mpi=none (SLURM_PROCID 3 of 8)"
};

/// Looks up environment variables through `get` (getenv by default). Order: explicit RANK/WORLD_SIZE, PMIX_*/OMPI_*
/// (MPI), SLURM_*, alone. Contradictory or missing variables are a ConfigError that names them (fault F35).
Launch detect_launch(const std::function<const char*(const char*)>& get = nullptr);

/// The first host of a Slurm node list: "node[003-005,9],login1" -> "node003".
std::string first_slurm_host(const std::string& node_list);

}  // namespace trireme
