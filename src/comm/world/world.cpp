#include "trireme/comm/communicator.h"

#include "collectives.h"
#include "mpi_communicator.h"
#include "trireme/base/error.h"
#include "trireme/base/fault.h"
#include "trireme/base/process.h"
#include "trireme/version.h"
#include "world_backend.h"

#include <fmt/format.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmath>
#include <csignal>

namespace trireme {

namespace {

/// While it lives: the process ends with 71 after TRIREME_RENDEZVOUS_SECONDS. MPI_Init itself waits without a limit for
/// a rank that is stopped before it, and the watchdog needs ranks that have met.
class MeetingLimit {
 public:
  explicit MeetingLimit(int rank) {
    const double seconds = positive_seconds("TRIREME_RENDEZVOUS_SECONDS", 300);
    text() = fmt::format(
        "{}: rank {} on {}: the ranks have not met in MPI_Init within {:g} s (TRIREME_RENDEZVOUS_SECONDS): a rank has "
        "not started or is stopped, or a host cannot be reached; run again\n",
        program_invocation_short_name, rank, host_name(), seconds);
    std::signal(SIGALRM, [](int) {
      (void)!::write(STDERR_FILENO, text().data(), text().size());
      _exit(static_cast<int>(ExitCode::kHang));
    });
    set(seconds);
  }
  ~MeetingLimit() {
    set(0);
    std::signal(SIGALRM, SIG_DFL);
  }

 private:
  static std::string& text() {
    static std::string text;
    return text;
  }
  static void set(double seconds) {
    itimerval timer{};
    timer.it_value.tv_sec = static_cast<time_t>(seconds);
    timer.it_value.tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
    setitimer(ITIMER_REAL, &timer, nullptr);
  }
};

/// One rank, or ranks joined by MPI, on CPUs.
class CpuWorld final : public JoinedWorld {
 public:
  CpuWorld(const Launch& launch, Watchdog* watchdog) : JoinedWorld(launch) {
    if (watchdog != nullptr) set_collective_observer(watchdog->observer());
    if (started_by_mpi()) {
      adopt_mpi();
      check_same_checking([](const std::string& text) { return mpi_all_gather_host(mpi_job(), text); }, kCommit);
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
  at::Device device() const override { return at::kCPU; }

  void leave() override {
    fault_point("leave", comm_->rank());
    comm_->barrier();
    // MPI_Finalize waits for all ranks: the watchdog must run until it returns.
    fault_point("finalize", comm_->rank());
    if (started_by_mpi()) finalize_mpi();
    if (guard_) guard_->leave();
    guard_.reset();
  }
};

}  // namespace

void JoinedWorld::adopt_mpi() {
  const MeetingLimit limit(launch_.rank);
  initialize_mpi();
  const int expected = launch_.world_size;
  launch_.rank = mpi_rank(MPI_COMM_WORLD);
  launch_.world_size = mpi_size(MPI_COMM_WORLD);
  if (launch_.world_size < expected)
    throw ConfigError(fmt::format(
        "the launcher started {} or more ranks but MPI_Init found {}: mpirun belongs to another MPI than this "
        "build, or Slurm's PMIx plugin is of another version",
        expected, launch_.world_size));
  MPI_Comm local = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, launch_.rank, MPI_INFO_NULL, &local),
            "MPI_Comm_split_type");
  launch_.local_rank = mpi_rank(local);
  launch_.local_world_size = mpi_size(local);
  MPI_Comm_free(&local);
  topology_ = make_topology(mpi_all_gather_host(MPI_COMM_WORLD, host_identity()));
  if (!topology_.renumbered()) return;
  launch_.rank = topology_.rank_of(launch_.rank);
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, 0, launch_.rank, &mpi_job()), "MPI_Comm_split");
}

void JoinedWorld::abort(const std::string& reason, int exit_code) {
  const bool mpi = started_by_mpi() && launch_.world_size > 1;
  // The watchdog first: it reaches every rank faster than MPI_Abort, which prints a page of text.
  if (guard_ && (guard_->connected() || !mpi)) guard_->fail(reason, exit_code);
  if (guard_)
    guard_->announce(reason, exit_code);
  else
    print_failure(launch_.rank, reason);
  if (mpi) abort_mpi(exit_code);
  _exit(exit_code);
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
        fmt::format("{} ranks on CPUs need MPI, and this start is {}: use mpirun -n {} or srun --mpi=pmix{}",
                    launch.world_size, launch.description(), launch.world_size,
                    launch.kind == Launch::Kind::kSlurm && environment("TRIREME_DEVICE") != "cpu"
                        ? "; if they are for GPUs, this job shows them none: ask for them (sbatch --gpus-per-node=N)"
                        : ""));
  return std::make_unique<CpuWorld>(launch, watchdog);
}

}  // namespace trireme
