#include "trireme/comm/communicator.h"

#include "collectives.h"
#include "mpi_communicator.h"
#include "self_communicator.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/process.h"
#include "world_backend.h"

#include <fmt/format.h>
#include <unistd.h>

namespace trireme {

namespace {

/// One rank, or ranks joined by MPI, on CPUs.
class CpuWorld final : public World {
 public:
  CpuWorld(const Launch& launch, Watchdog* watchdog) : launch_(launch) {
    if (watchdog != nullptr) set_collective_observer(watchdog->observer());
    if (launch.kind == Launch::Kind::kMpi) {
      initialize_mpi();
      adopt_mpi_rank(launch_);
      topology_ = order_mpi_ranks(launch_);
      comm_ = make_mpi_communicator(mpi_job(), "world");
    } else {
      comm_ = make_self_communicator();
      topology_ = make_topology({host_identity()});
    }
    hosts_ = comm_->all_gather_host(host_name());
    if (comm_->size() == 1 || watchdog == nullptr) return;
    const auto all_gather = [this](const std::string& text) { return comm_->all_gather_host(text); };
    guard_ = watchdog->guard(comm_->rank(), comm_->size(), all_gather, {});
  }
  Communicator& communicator() override { return *comm_; }
  at::Device device() const override { return at::kCPU; }
  const Launch& launch() const override { return launch_; }
  const std::vector<std::string>& hosts() const override { return hosts_; }
  const Topology& topology() const override { return topology_; }

  void abort(const std::string& reason, int exit_code) override {
    // The watchdog first: it reaches every rank faster than MPI_Abort, which prints a page of text.
    if (guard_ && guard_->connected()) guard_->fail(reason, exit_code);
    if (guard_)
      guard_->announce(reason, exit_code);
    else
      print_failure(comm_->rank(), reason);
    if (comm_->size() > 1) abort_mpi(exit_code);
    _exit(exit_code);
  }

  void leave() override {
    fault_point("leave", comm_->rank());
    comm_->barrier();
    // MPI_Finalize waits for all ranks: the watchdog must run until it returns.
    fault_point("finalize", comm_->rank());
    if (launch_.kind == Launch::Kind::kMpi) finalize_mpi();
    if (guard_) guard_->leave();
    guard_.reset();
  }

 private:
  Launch launch_;
  std::vector<std::string> hosts_;
  Topology topology_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<RankGuard> guard_;
};

}  // namespace

void adopt_mpi_rank(Launch& launch) {
  const int expected = launch.world_size;
  MPI_Comm_rank(MPI_COMM_WORLD, &launch.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &launch.world_size);
  if (launch.world_size < expected)
    throw ConfigError(fmt::format(
        "the launcher started {} or more ranks but MPI_Init found {}: mpirun belongs to another MPI than this "
        "build, or Slurm's PMIx plugin is of another version",
        expected, launch.world_size));
  MPI_Comm local = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, launch.rank, MPI_INFO_NULL, &local),
            "MPI_Comm_split_type");
  MPI_Comm_rank(local, &launch.local_rank);
  MPI_Comm_size(local, &launch.local_world_size);
  MPI_Comm_free(&local);
}

Topology order_mpi_ranks(Launch& launch) {
  Topology topology = make_topology(mpi_all_gather_host(MPI_COMM_WORLD, host_identity()));
  if (!topology.renumbered()) return topology;
  launch.rank = topology.rank_of(launch.rank);
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, 0, launch.rank, &mpi_job()), "MPI_Comm_split");
  return topology;
}

#ifndef TRIREME_WITH_CUDA
std::string nccl_version_text() { return ""; }
#endif

std::unique_ptr<World> World::join(const Launch& launch, bool use_gpu, Watchdog* watchdog) {
  if (use_gpu) {
#ifdef TRIREME_WITH_CUDA
    return join_gpu_world(launch, watchdog);
#else
    throw ConfigError("this build has no CUDA: configure with -DTRIREME_CUDA=ON");
#endif
  }
  if (launch.world_size > 1 && launch.kind != Launch::Kind::kMpi)
    throw ConfigError(
        fmt::format("{} ranks on CPUs need MPI, and this start is {}: use mpirun -n {} or srun --mpi=pmix",
                    launch.world_size, launch.description(), launch.world_size));
  return std::make_unique<CpuWorld>(launch, watchdog);
}

}  // namespace trireme
