// Ranks with a GPU each.
#include "host_exchange.h"
#include "mpi_communicator.h"
#include "nccl_communicator.h"
#include "progress_ring.h"
#include "self_communicator.h"
#include "store_world.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "world_backend.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace trireme {

namespace {

class GpuWorld final : public World {
 public:
  explicit GpuWorld(const Launch& launch) : launch_(launch) {
    if (launch_.kind == Launch::Kind::kMpi) {
      initialize_mpi();
      adopt_mpi_rank(launch_);
    }
    choose_device();
    if (launch_.world_size == 1) {
      comm_ = make_self_communicator();
      hosts_ = {host_name()};
      return;
    }
    std::unique_ptr<HostExchange> exchange;
    if (launch_.kind == Launch::Kind::kMpi) {
      const MPI_Comm world = MPI_COMM_WORLD;
      exchange = make_mpi_exchange(&world);
    } else {
      store_ = join_store(launch_);
      exchange = store_->exchange();
    }
    check_own_gpu(*exchange);
    comm_ = make_nccl_communicator(std::move(exchange), device(), "world");
    hosts_ = comm_->all_gather_host(host_name());
    watchdog_ = std::make_unique<Watchdog>(launch_.rank, Watchdog::Hooks{.poll = [this] { look_at_others(); },
                                                                         .device_wait = [] { return nccl_stuck_for(); },
                                                                         .ask_others = [this] { return ask_others(); }});
  }

  Communicator& communicator() override { return *comm_; }
  at::Device device() const override { return {at::kCUDA, static_cast<c10::DeviceIndex>(device_)}; }
  const Launch& launch() const override { return launch_; }
  const std::vector<std::string>& hosts() const override { return hosts_; }

  void abort(const std::string& reason, int exit_code) override {
    print_failure(launch_.rank, reason);
    publish(reason, exit_code);
    if (launch_.kind == Launch::Kind::kMpi) MPI_Abort(MPI_COMM_WORLD, exit_code);
    // Rank 0 holds the store: the others, who look every second, must have read the reason before it goes.
    if (store_ && launch_.rank == 0) sleep(3);
    _exit(exit_code);
  }

  void leave() override {
    comm_->barrier();
    watchdog_.reset();
    comm_.reset();
    if (store_) store_->leave();
    store_.reset();
    if (launch_.kind == Launch::Kind::kMpi) finalize_mpi();
  }

 private:
  void choose_device() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    // A launcher that shows each rank its own GPU only leaves nothing to choose.
    device_ = count == 1 ? 0 : launch_.local_rank;
    const bool too_few = count == 1 && launch_.local_world_size > 1 && visible == nullptr;
    if (status != cudaSuccess || device_ >= count || too_few)
      throw ConfigError(fmt::format("rank {} is number {} on {}, which shows it {} GPU{} (CUDA_VISIBLE_DEVICES={}): start at most one rank "
                                    "per GPU, or set TRIREME_DEVICE=cpu", launch_.rank, launch_.local_rank, host_name(), count,
                                    count == 1 ? "" : "s", visible == nullptr ? "unset" : visible));
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(device_));
  }

  /// NCCL's own words for two ranks on one GPU do not say which; collective.
  void check_own_gpu(HostExchange& exchange) const {
    char bus_id[32] = "?";
    (void)cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device_);
    const auto all = exchange.all_gather(fmt::format("{} {}", host_name(), bus_id));
    for (size_t i = 0; i < all.size(); ++i)
      for (size_t j = i + 1; j < all.size(); ++j)
        if (all[i] == all[j])
          throw ConfigError(fmt::format("ranks {} and {} share the GPU {}: give each rank its own (LOCAL_RANK, CUDA_VISIBLE_DEVICES, or "
                                        "srun --gpus-per-task=1)", i, j, all[i]));
  }

  void publish(const std::string& reason, int exit_code) const {
    if (!store_) return;
    try {
      store_->publish_failure(fmt::format("{}\nrank {} on {}: {}", exit_code, launch_.rank, host_name(), reason));
    } catch (const std::exception&) {
      // Rank 0 and its store are gone already: the others notice by themselves.
    }
  }

  /// Every second, from the watchdog's thread: leave with a rank that has failed, answer one that asks.
  void look_at_others() {
    if (const std::string error = nccl_error(); !error.empty()) abort(error, static_cast<int>(ExitCode::kInternal));
    if (!store_) return;
    std::string failure;
    try {
      failure = store_->failure();
      if (!answered_ && failure.empty() && store_->hang_reported()) answer();
    } catch (const std::exception&) {
      failure = fmt::format("{}\nrank 0, which holds the rendezvous store, is gone", static_cast<int>(ExitCode::kInternal));
    }
    if (failure.empty()) return;
    print_failure(launch_.rank, "leaving because " + failure.substr(failure.find('\n') + 1));
    if (launch_.rank == 0) sleep(3);
    _exit(std::atoi(failure.c_str()));
  }

  void answer() {
    const auto position = ProgressRing::instance().position();
    store_->publish_position(position.sequence, fmt::format("{}: {}", host_name(), position.text));
    answered_ = true;
  }

  /// The first rank that finds the job stuck collects where the others are and takes them down; the rest answer and go with it.
  std::string ask_others() {
    if (!store_) return "";
    try {
      answer();
      const bool report = store_->claim_hang_report();
      sleep(3);  // the others look every second
      const std::string text = store_->describe_positions();
      if (report) publish("found the job stuck", static_cast<int>(ExitCode::kHang));
      if (launch_.rank == 0) sleep(3);
      return report ? text : "";
    } catch (const std::exception&) {
      return "rank 0, which holds the rendezvous store, is gone\n";
    }
  }

  Launch launch_;
  std::vector<std::string> hosts_;
  int device_ = 0;
  bool answered_ = false;
  std::unique_ptr<StoreWorld> store_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace

std::unique_ptr<World> join_gpu_world(const Launch& launch) { return std::make_unique<GpuWorld>(launch); }

}  // namespace trireme
