#pragma once
// Interfaces between comm and a watchdog. The module watchdog implements them; the program passes its watchdog to
// World::join().

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// The name under which MPI_Finalize counts as a collective; a watchdog treats a hang in it separately.
inline constexpr const char* kMpiFinalize = "MPI_Finalize";

/// Receives every collective of this process. All ranks of a job issue the same collectives in the same order, so equal
/// sequence numbers mean the same collective. Called from any thread; `kind` and `group` are literals.
class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;
  /// The host issues a collective; returns its sequence number, from 1.
  virtual uint64_t begin(const char* kind, int64_t elements, const char* group) = 0;
  /// The host blocks on it from now on.
  virtual void wait(uint64_t sequence) = 0;
  /// The host continues although the collective has not ended.
  virtual void resume(uint64_t sequence) = 0;
  virtual void end(uint64_t sequence) = 0;
};

/// The part of a watchdog on one rank.
class RankGuard {
 public:
  virtual ~RankGuard() = default;
  /// False when fail() and announce() cannot reach the other ranks.
  virtual bool connected() const = 0;
  /// Prints the reason, ends the other ranks and this process.
  [[noreturn]] virtual void fail(const std::string& reason, int exit_code) = 0;
  /// As fail(), but returns: the caller tells the launcher as well (MPI_Abort) and ends the process.
  virtual void announce(const std::string& reason, int exit_code) = 0;
  /// Orderly end, after the last barrier of all ranks.
  virtual void leave() = 0;
};

class Watchdog {
 public:
  struct Hooks {
    /// Seconds for which collectives queued on a GPU have made no progress. Called from a thread of the watchdog.
    std::function<double()> device_wait;
    /// What the communication library's own threads report, or empty.
    std::function<std::string()> device_error;
    /// The address of this host in the job's network, as text; empty: not known, found from the kernel's routes.
    std::string address{};
  };
  using AllGather = std::function<std::vector<std::string>(const std::string&)>;

  virtual ~Watchdog() = default;
  virtual CollectiveObserver& observer() = 0;
  /// Collective over the world's ranks, through `all_gather`.
  virtual std::unique_ptr<RankGuard> guard(int rank, int size, const AllGather& all_gather, Hooks hooks) = 0;
};

}  // namespace trireme
