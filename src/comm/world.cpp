#include "trireme/comm/communicator.h"

#include "mpi_communicator.h"
#include "rank_watch.h"
#include "self_communicator.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "world_backend.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace trireme {

std::string host_name() {
  char name[256] = "unknown";
  (void)gethostname(name, sizeof name - 1);
  return name;
}

double positive_seconds(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds > 0) || seconds > 1e6)
    throw ConfigError(fmt::format("{}='{}' is not a number of seconds between 0 and 1e6", variable, text));
  return seconds;
}

void print_failure(int rank, const std::string& reason) {
  std::fflush(stdout);
  fmt::print(stderr, "rank {} on {}: {}\n", rank, host_name(), reason);
  std::fflush(stderr);
}

namespace {

/// One rank, or ranks joined by MPI, on CPUs.
class CpuWorld final : public World {
 public:
  explicit CpuWorld(const Launch& launch) : launch_(launch) {
    if (launch.kind == Launch::Kind::kMpi) {
      initialize_mpi();
      comm_ = make_mpi_communicator(MPI_COMM_WORLD, "world");
      adopt_mpi_rank(launch_);
    } else {
      comm_ = make_self_communicator();
    }
    hosts_ = {host_name()};
    if (comm_->size() == 1) return;
    const auto all_gather = [this](const std::string& text) { return comm_->all_gather_host(text); };
    watch_ = std::make_unique<RankWatch>(comm_->rank(), comm_->size(), all_gather, RankWatch::Hooks{});
    hosts_ = watch_->hosts();
  }
  Communicator& communicator() override { return *comm_; }
  at::Device device() const override { return at::kCPU; }
  const Launch& launch() const override { return launch_; }
  const std::vector<std::string>& hosts() const override { return hosts_; }

  void abort(const std::string& reason, int exit_code) override {
    if (!watch_) {
      print_failure(comm_->rank(), reason);
      _exit(exit_code);
    }
    // Lifelines reach every rank faster than MPI_Abort, and without its page of text.
    if (watch_->connected()) watch_->fail(reason, exit_code);
    watch_->tell(reason, exit_code);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    _exit(exit_code);
  }

  void leave() override {
    fault_point("leave", comm_->rank());
    comm_->barrier();
    // MPI lets nobody go before all have come: the watch stays until it has.
    fault_point("finalize", comm_->rank());
    if (launch_.kind == Launch::Kind::kMpi) finalize_mpi();
    if (watch_) watch_->leave();
    watch_.reset();
  }

 private:
  Launch launch_;
  std::vector<std::string> hosts_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<RankWatch> watch_;
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

std::unique_ptr<World> World::join(const Launch& launch, bool use_gpu) {
  if (use_gpu) {
#ifdef TRIREME_WITH_CUDA
    return join_gpu_world(launch);
#else
    throw ConfigError("this build has no CUDA: configure with -DTRIREME_CUDA=ON");
#endif
  }
  if (launch.world_size > 1 && launch.kind != Launch::Kind::kMpi)
    throw ConfigError(
        fmt::format("{} ranks on CPUs need MPI, and this start is {}: use mpirun -n {} or srun --mpi=pmix",
                    launch.world_size, launch.description(), launch.world_size));
  return std::make_unique<CpuWorld>(launch);
}

}  // namespace trireme
