#pragma once
// Collectives between ranks: NCCL for GPU tensors, MPI for CPU tensors, self for one rank. Every call has a sequence
// number, which the watchdog receives.

#include "trireme/comm/launch.h"
#include "trireme/comm/topology.h"
#include "trireme/comm/watch.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace trireme {

enum class ReduceOp { kSum, kMax };

/// A collective that has started. wait(): on a GPU the current stream waits for it and the host continues; on a CPU the
/// host waits. The destructor calls wait() if the caller did not.
class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;
};
using WorkPtr = std::unique_ptr<Work>;

/// A group of ranks. Tensors are contiguous, on the group's device, and must stay alive until wait(). GPU collectives
/// start after the work already queued on the caller's current stream and run on the communicator's own stream.
class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual const char* backend() const = 0;  // "nccl", "mpi", "self"

  /// out = concatenation of every rank's `in`; out.numel() == size() * in.numel(); `in` may be this rank's slice of
  /// `out`.
  virtual WorkPtr all_gather(at::Tensor out, const at::Tensor& in) = 0;
  /// out = this rank's slice of the sum over ranks of `in`; in.numel() == size() * out.numel().
  virtual WorkPtr reduce_scatter(at::Tensor out, const at::Tensor& in, ReduceOp op = ReduceOp::kSum) = 0;
  /// Part i of `in` goes to rank i, part i of `out` is from rank i; out.numel() == in.numel(), a multiple of size().
  /// The tensors share no memory.
  virtual WorkPtr all_to_all(at::Tensor out, const at::Tensor& in) = 0;
  virtual WorkPtr all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::kSum) = 0;
  virtual WorkPtr broadcast(at::Tensor tensor, int root) = 0;
  virtual void barrier() = 0;  // the host waits
  /// As barrier(), before shared resources are released: false when a rank did not arrive within `seconds` or is lost.
  /// After false the group must not be used.
  virtual bool barrier_within(double seconds) = 0;

  /// Host values, exchanged without a GPU stream: for start-up, evaluation results and votes.
  virtual std::vector<double> all_reduce_host(std::vector<double> values, ReduceOp op = ReduceOp::kSum) = 0;
  virtual std::vector<std::string> all_gather_host(const std::string& value) = 0;
  /// On rank 0: every rank's value in rank order. On other ranks: empty, and they need not wait for rank 0. Cheaper
  /// than all_gather_host(), which sends every value to every rank.
  virtual std::vector<std::string> gather_host(const std::string& mine) {
    std::vector<std::string> all = all_gather_host(mine);
    if (rank_ != 0) all.clear();
    return all;
  }

  /// The sub-group of ranks with the same colour, ordered by rank. Collective over this group. `multiprocessors`: the
  /// most of them that a collective of NCCL takes from the kernels beside it; 0: as many as NCCL chooses.
  virtual std::unique_ptr<Communicator> split(int colour, int multiprocessors = 0) = 0;

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}
  int rank_, size_;
  int first_rank_ = 0, rank_stride_ = 1;  // rank i of the group is rank first + i * stride of the job
};

/// A collective that has already happened.
struct DoneWork final : Work {
  void wait() override {}
};
/// The group of one rank.
std::unique_ptr<Communicator> make_self_communicator();

/// All ranks of the job, and what exists once per process: bootstrap (key store or MPI), device choice, watchdog.
class World {
 public:
  /// Joins the other ranks. `use_gpu`: NCCL on device = local rank; otherwise MPI (several ranks) or self. Several CPU
  /// ranks without MPI, too few GPUs, or absent ranks are a ConfigError naming the remedy. `watchdog` outlives the
  /// world; without one (nullptr) only the launcher notices lost and hung ranks.
  static std::unique_ptr<World> join(const Launch& launch, bool use_gpu, Watchdog* watchdog);
  virtual ~World() = default;

  virtual Communicator& communicator() = 0;
  virtual at::Device device() const = 0;
  virtual const Launch& launch() const = 0;
  virtual const std::vector<std::string>& hosts() const = 0;  // per rank
  /// How ranks are numbered; the numbers may differ from the launcher's. launch() has the numbers of this rank.
  virtual const Topology& topology() const = 0;

  /// Prints `reason` and ends all ranks, through the watchdog and MPI_Abort.
  [[noreturn]] virtual void abort(const std::string& reason, int exit_code) = 0;
  /// Orderly end: barrier, then finalise.
  virtual void leave() = 0;
};

/// ", nccl 2.28.9": of the library that this process has loaded; "" in builds without CUDA.
std::string nccl_version_text();

}  // namespace trireme
