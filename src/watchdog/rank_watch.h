#pragma once
// Private to watchdog/: each rank watches the others, under every launcher. A dead rank is noticed at once, a hung rank
// after a time limit, and a rank that fails ends all ranks.
//
// Records: each rank keeps its last collectives in shared memory. The ranks of its host read it even when the rank is
// stopped or dead, and any of them answers for the host when another host asks.
//
// Neighbour connections: each rank holds a TCP connection to the next rank; together they form a ring. A connection
// breaks when one of its processes dies. The reason of a failure is forwarded in both directions.
//
// Hang detection: when a collective does not finish in time, the records of all ranks show which rank is missing, and
// the stack of its training thread shows where it is. Then nearly all ranks wait, and few of them ask: of each host its
// lowest waiting rank asks the host before; only where no rank waits there does it ask all hosts. The number of
// questions grows with the number of hosts.

#include "rank_peers.h"
#include "trireme/comm/greeting_queue.h"
#include "trireme/comm/watch.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace trireme {

class RankWatch final : public RankGuard {
 public:
  using Hooks = Watchdog::Hooks;
  using AllGather = Watchdog::AllGather;

  /// Collective. ConfigError when TRIREME_HANG_SECONDS is not a number of seconds.
  RankWatch(int rank, int size, const AllGather& all_gather, Hooks hooks);
  ~RankWatch() override;

  /// False when the next rank could not be reached: then only the launcher or the time limit of a collective notices a
  /// dead rank.
  bool connected() const override {
    const std::lock_guard lock(neighbours_mutex_);
    return neighbours_[kNext].fd >= 0;
  }

  /// When the failure is a consequence of another rank's death, the report about that rank comes first and ends this
  /// process.
  [[noreturn]] void fail(const std::string& reason, int exit_code) override;
  void announce(const std::string& reason, int exit_code) override;
  void leave() override;
  /// Connections to this rank's port from outside the job; complete after leave().
  int64_t unknown_callers() const { return unknown_callers_; }

 private:
  struct Neighbour {
    int fd = -1, rank = -1;  // fd -1: not connected
    std::string received;
  };
  enum { kNext, kPrevious };
  /// How long a failure waits before it is reported: it may follow from the death of another rank, whose report arrives
  /// within this time.
  static constexpr std::chrono::milliseconds kReportDelay{300};

  // Start: listening sockets, and the exchange of addresses, process IDs and tokens. Ranks of one host connect at its
  // loopback address; with several hosts another socket listens on the job's interface.
  std::vector<Endpoint> listen(const std::vector<std::string>& places);
  bool connect_next();

  // The server's thread: neighbour connections, and requests of other ranks.
  void serve();
  void answer(const GreetingQueue::Caller& caller);
  void read_from(Neighbour& neighbour);
  void handle_lost(const Neighbour& neighbour);

  // The watchdog's thread.
  void watch();
  /// Ends all ranks, or returns the seconds until the next look.
  double handle_hang(double waited);
  /// Another rank searches for the hanging rank: a lower rank of this host, or a rank of the host before. That host in
  /// `lost` when it does not answer.
  bool another_asks(std::optional<size_t>& lost) const;
  /// Sleeps as the watchdog's thread does while it handles a hang. False when the watch ends.
  bool pause(double seconds) const;
  double limit() const;
  /// Seconds for which this rank has waited, its host in a collective or its device.
  double longest_wait() const;

  // The end of the process.
  /// Returns to one thread only, which ends the process; the others block.
  void claim_exit();
  void forward(const std::string& reason, int exit_code);
  void end_stopped_ranks();
  void end_threads();

  int rank_, size_;
  Hooks hooks_;
  std::optional<double> fixed_limit_;
  std::vector<int> listeners_;
  int wake_ = -1;
  std::unique_ptr<GreetingQueue> queue_;  // of the server's thread
  std::atomic<int64_t> unknown_callers_ = 0;
  std::unique_ptr<RankPeers> peers_;
  mutable std::mutex neighbours_mutex_;
  Neighbour neighbours_[2];
  std::optional<std::chrono::steady_clock::time_point> previous_lost_;  // when its connection broke
  std::atomic<bool> stop_ = false, exiting_ = false;
  double next_check_ = 0;  // steady seconds; the next check for a hang is not before
  bool excuse_logged_ = false, continued_ = false;
  std::thread server_, watchdog_;
};

}  // namespace trireme
