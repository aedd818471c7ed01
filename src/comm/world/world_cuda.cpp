// The world of ranks that own one GPU each.
#include "collectives.h"
#include "host_exchange.h"
#include "mpi_communicator.h"
#include "store_world.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/process.h"
#include "trireme/base/text.h"
#include "trireme/version.h"
#include "world_backend.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <cstdlib>

namespace trireme {

namespace {

class GpuWorld final : public JoinedWorld {
 public:
  GpuWorld(const Launch& launch, Watchdog* watchdog) : JoinedWorld(launch) {
    if (watchdog != nullptr) set_collective_observer(watchdog->observer());
    if (started_by_mpi()) adopt_mpi();
    if (launch_.world_size == 1) {
      if (const std::string problem = choose_device(); !problem.empty()) throw ConfigError(problem);
      comm_ = make_self_communicator();
      hosts_ = {host_name()};
      topology_ = make_topology({host_identity()});
      return;
    }
    std::unique_ptr<HostExchange> exchange;
    if (started_by_mpi()) {
      exchange = make_mpi_exchange(mpi_job());
    } else {
      store_ = join_store(launch_);
      exchange = store_->exchange();
      const auto identities = exchange->all_gather(host_identity());
      complete_launch(launch_, identities);
      topology_ = make_topology(identities);
      if (topology_.renumbered()) {
        launch_.rank = topology_.rank_of(launch_.rank);
        exchange = exchange->renumber(launch_.rank);
      }
    }
    check_same_checking([&](const std::string& text) { return exchange->all_gather(text); }, kCommit);
    check_own_gpu(*exchange, choose_device());
    hosts_ = exchange->all_gather(host_name());
    if (watchdog != nullptr) {
      const auto all_gather = [&exchange](const std::string& text) { return exchange->all_gather(text); };
      guard_ = watchdog->guard(launch_.rank, launch_.world_size, all_gather,
                               {.device_wait = [] { return nccl_stuck_for(); },
                                .device_error = [] { return nccl_error(); },
                                .address = store_ ? store_->address() : ""});
    }
    if (store_) store_->watched();
    comm_ = make_nccl_communicator(std::move(exchange), device(), "world");
  }

  at::Device device() const override { return {at::kCUDA, static_cast<c10::DeviceIndex>(device_)}; }

  void leave() override {
    fault_point("leave", launch_.rank);
    comm_->barrier();
    fault_point("part", launch_.rank);
    // The watchdog ends last: a rank that stops during these steps blocks the others, as in any collective.
    comm_.reset();
    if (started_by_mpi()) {
      fault_point("finalize", launch_.rank);
      finalize_mpi();
    }
    if (store_) store_->part();
    if (guard_) guard_->leave();
    guard_.reset();
    if (store_) store_->leave();
    store_.reset();
  }

 private:
  /// The problem, or "".
  std::string choose_device() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    // Some launchers make only its own GPU visible to each rank.
    device_ = count == 1 ? 0 : launch_.local_rank;
    if (status != cudaSuccess || device_ >= count)
      return fmt::format(
          "rank {} on {} is number {} there and is shown {} (CUDA_VISIBLE_DEVICES={}): start at most one rank "
          "per GPU, or set TRIREME_DEVICE=cpu",
          launch_.rank, host_name(), launch_.local_rank, counted(count, "GPU"), visible == nullptr ? "unset" : visible);
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(device_));
    return "";
  }

  /// Collective. `problem`: what choose_device() found. NCCL's message for two ranks on one GPU does not name them.
  void check_own_gpu(HostExchange& exchange, const std::string& problem) const {
    char bus_id[32] = "?";
    if (problem.empty()) (void)cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device_);
    // Hosts may share a name.
    const auto problems = exchange.all_gather(problem);
    const auto all = exchange.all_gather(fmt::format("{} {}", host_identity(), bus_id));
    std::string found = problem;
    for (size_t i = 0; i < all.size() && found.empty(); ++i) {
      found = problems[i];
      for (size_t j = i + 1; j < all.size() && found.empty() && problems[j].empty(); ++j)
        if (all[i] == all[j])
          found = fmt::format(
              "ranks {} and {} on {} share the GPU {}: give each rank its own (LOCAL_RANK, CUDA_VISIBLE_DEVICES, or "
              "srun --gpus-per-task=1)",
              i, j, all[i].substr(0, all[i].find(' ')), all[i].substr(all[i].rfind(' ') + 1));
    }
    if (found.empty()) return;
    // All ranks know the result. They leave together, so that none reports another rank as lost.
    if (store_)
      store_->leave();
    else
      finalize_mpi();
    throw ConfigError(found);
  }

  int device_ = 0;
  std::unique_ptr<StoreWorld> store_;
};

}  // namespace

std::string nccl_version_text() {
  int version = 0;
  (void)ncclGetVersion(&version);
  return fmt::format(", nccl {}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::unique_ptr<World> join_gpu_world(const Launch& launch, Watchdog* watchdog) {
  return std::make_unique<GpuWorld>(launch, watchdog);
}

}  // namespace trireme
