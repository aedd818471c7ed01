#pragma once
// Private to comm/world/: common parts of the CPU and the GPU world, and the collectives of GPU tensors through NCCL's
// own API.

#include "host_exchange.h"
#include "trireme/comm/communicator.h"

#include <memory>
#include <string>
#include <vector>

namespace trireme {

class JoinedWorld : public World {
 public:
  explicit JoinedWorld(const Launch& launch) : launch_(launch) {}
  Communicator& communicator() final { return *comm_; }
  const Launch& launch() const final { return launch_; }
  const std::vector<std::string>& hosts() const final { return hosts_; }
  const Topology& topology() const final { return topology_; }
  [[noreturn]] void abort(const std::string& reason, int exit_code) final;

 protected:
  bool started_by_mpi() const { return launch_.kind == Launch::Kind::kMpi; }
  /// MPI_Init: rank, size, local rank and local size from MPI; numbers the ranks host by host. Collective. ConfigError
  /// when MPI has fewer ranks than the launcher started.
  void adopt_mpi();

  Launch launch_;
  std::vector<std::string> hosts_;
  Topology topology_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<RankGuard> guard_;
};

#ifdef TRIREME_WITH_CUDA
std::unique_ptr<World> join_gpu_world(const Launch& launch, Watchdog* watchdog);

/// One communicator per group, with its own high-priority stream. `exchange` transfers the unique id and serves the
/// host-side calls.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<HostExchange> exchange, at::Device device,
                                                     const char* name);

/// Seconds for which collectives have been queued on GPU streams without any of them finishing; 0 when none is queued.
/// Any thread.
double nccl_stuck_for();

/// A report of NCCL's own threads (a lost peer, a failed link), or empty. Any thread.
std::string nccl_error();
#endif

}  // namespace trireme
