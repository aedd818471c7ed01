#pragma once
// What comm tells a watchdog and asks of it. The module watchdog implements these; the program hands its watchdog to
// World::join().

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trireme {

/// MPI's end among the collectives: a watchdog does not break it off at once.
inline constexpr const char* kMpiFinalize = "MPI_Finalize";

/// Is told of every collective of this process. All ranks of a job issue the same collectives in the same order, so
/// equal sequence numbers mean the same one. Called from any thread; `kind` and `group` are literals.
class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;
  /// The host issues a collective; returns its sequence number, from 1.
  virtual uint64_t begin(const char* kind, int64_t elements, const char* group) = 0;
  /// The host blocks on it from now on.
  virtual void wait(uint64_t sequence) = 0;
  /// The host goes on although the collective has not ended.
  virtual void resume(uint64_t sequence) = 0;
  virtual void end(uint64_t sequence) = 0;
};

/// Watches the ranks of a world from one of them.
class RankGuard {
 public:
  virtual ~RankGuard() = default;
  /// False when fail() and announce() reach no other rank.
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
  };
  using AllGather = std::function<std::vector<std::string>(const std::string&)>;

  virtual ~Watchdog() = default;
  virtual CollectiveObserver& observer() = 0;
  /// Collective over the world's ranks, through `all_gather`.
  virtual std::unique_ptr<RankGuard> guard(int rank, int size, const AllGather& all_gather, Hooks hooks) = 0;
};

}  // namespace trireme
