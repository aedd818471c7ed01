#pragma once
// Private to watchdog/: each rank watches the others, whatever launched them. A dead rank is noticed at once, a hung
// one after a time limit, and a rank that fails ends all of them.
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

#include "rank_record.h"
#include "trireme/comm/greeting_queue.h"
#include "trireme/comm/watch.h"

#include <atomic>
#include <chrono>
#include <functional>
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
  bool connected() const override { return neighbours_[kNext].fd >= 0; }

  /// When the failure is a consequence of another rank's death, the report about that rank comes first and ends this
  /// process.
  [[noreturn]] void fail(const std::string& reason, int exit_code) override;
  void announce(const std::string& reason, int exit_code) override;
  void leave() override;
  /// Connections to this rank's port that were none of this job's; complete after leave().
  int64_t strangers() const { return strangers_; }
  /// One per rank: the last collectives and state of each, as far as they can be read now.
  /// The views of all ranks. Host `lost` is not asked: it did not answer just now.
  std::vector<RankView> views(std::optional<size_t> lost);

 private:
  struct Endpoint {
    std::string address;
    int port = 0;
  };
  struct Peer {
    std::string host;
    size_t group = 0;  // of hosts_
    int pid = 0;
    std::vector<Endpoint> endpoints;     // in the order of attempts
    const RankRecord* record = nullptr;  // same host
  };
  struct Neighbour {
    int fd = -1, rank = -1;  // fd -1: not connected
    std::string received;
  };
  enum { kNext, kPrevious };
  /// How long a failure waits before it is reported: it may follow from the death of another rank, whose report arrives
  /// within this time.
  static constexpr std::chrono::milliseconds kReportDelay{300};
  static constexpr double kStackSeconds = 1;

  // Start: listening sockets, and the exchange of addresses, process IDs and tokens. Ranks of one host meet at its
  // loopback address; one more socket, where there are other hosts, listens on the job's interface.
  std::string place() const;
  void listen(const std::vector<std::string>& places);
  std::string introduction();
  void read_introductions(const std::vector<std::string>& introductions, const std::vector<std::string>& places);
  bool connect_next();
  int connect_to(int rank, double seconds) const;

  // The server's thread: neighbour connections, and requests of other ranks.
  void serve();
  void answer(const GreetingQueue::Caller& caller);
  void read_from(Neighbour& neighbour);
  void handle_lost(const Neighbour& neighbour);

  // The watchdog's thread.
  void watch();
  /// Ends all ranks, or returns the seconds until the next look.
  double handle_hang(double waited);
  /// Another rank finds the hanging one: a lower one of this host, or one of the host before. That host in `lost`
  /// when it does not answer.
  bool another_asks(std::optional<size_t>& lost) const;
  /// Sleeps as the watchdog's thread does while it handles a hang. False when the watch ends.
  bool pause(double seconds) const;
  double limit() const;
  /// The views of these ranks of one host, from any of them that answers; of none when the host does not answer, whose
  /// ranks are asked again and again for kHostSeconds.
  std::vector<RankView> query(const std::vector<int>& ranks_of_host) const;
  /// The answer of a rank's server thread; nothing when there is none or it is incomplete.
  std::optional<std::string> ask(int rank, char request, double seconds) const;
  std::string stack_of(const RankView& view) const;

  // The end of the process.
  /// Returns to one thread only, which ends the process; the others block.
  void claim_exit();
  void forward(const std::string& reason, int exit_code);
  void end_stopped_ranks();
  /// Sends SIGCONT to the stopped ranks of this host and returns them.
  std::vector<const Peer*> continue_stopped_ranks() const;

  int rank_, size_;
  Hooks hooks_;
  std::optional<double> fixed_limit_;
  uint64_t token_ = 0;
  std::vector<int> listeners_;
  std::vector<Endpoint> endpoints_;  // of this rank; the loopback address first
  int wake_ = -1;
  std::unique_ptr<GreetingQueue> queue_;  // of the server's thread
  std::atomic<int64_t> strangers_ = 0;
  std::vector<Peer> peers_;
  std::vector<std::vector<int>> hosts_;  // their ranks; hosts in the order of their first ranks
  std::mutex neighbours_mutex_;
  Neighbour neighbours_[2];
  std::optional<std::chrono::steady_clock::time_point> previous_lost_;  // when its connection broke
  std::atomic<bool> stop_ = false, exiting_ = false;
  double next_check_ = 0;  // steady seconds; the next check for a hang is not before
  bool excuse_logged_ = false, continued_ = false;
  std::thread server_, watchdog_;
};

}  // namespace trireme
