#pragma once
// Private to watchdog/: the other ranks of a job: their addresses, and their answers to questions.

#include "rank_record.h"
#include "trireme/comm/watch.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// The protocol of the TCP connections between watches.
namespace wire {

/// The request of a connection: neighbour (stays open); views of all ranks of this host; stack of this rank's training
/// thread.
enum Request : char { kNeighbour = 'N', kQuery = 'Q', kStack = 'S' };
/// The first bytes of a connection.
struct Greeting {
  uint64_t token;  // of the job; connections with another token are closed
  int32_t rank;
  char request;
};
/// Messages between neighbours: orderly end, or failure (uint32 length, then "exit code\nreason").
enum Message : char { kBye = 'B', kFailure = 'F' };
constexpr size_t kMaxReason = 4000;
/// The bytes that a neighbour has sent so far.
struct Received {
  enum { kNothing, kIncomplete, kOrderlyEnd, kFailed, kJunk } what = kNothing;
  int exit_code = 0;  // of kFailed; from 1 to 255
  std::string reason;
};
Received read_message(std::string_view bytes);

}  // namespace wire

struct Endpoint {
  std::string address;
  int port = 0;
};

/// One word for the network that this process sees, equal for processes that share its loopback interface, and the
/// addresses under which other hosts may reach it, the best first: `address`, if known.
std::string network_place(const std::string& address);

class RankPeers {
 public:
  /// Seconds for which a rank's server waits for the stack of its training thread.
  static constexpr double kStackSeconds = 1;
  struct Peer {
    std::string host;
    size_t group = 0;  // of hosts()
    int pid = 0;
    std::vector<Endpoint> endpoints;     // in the order of attempts
    const RankRecord* record = nullptr;  // same host
  };
  /// The text with which other ranks reach this rank, which listens at `endpoints`, loopback address first.
  static std::string introduction(const std::vector<Endpoint>& endpoints);
  /// `introductions`, `places`: of all ranks. `stop`: set when the watch ends; questions then end early.
  RankPeers(int rank, const std::vector<std::string>& introductions, const std::vector<std::string>& places,
            const std::atomic<bool>& stop);

  const Peer& operator[](int rank) const { return peers_[static_cast<size_t>(rank)]; }
  const std::vector<std::vector<int>>& hosts() const { return hosts_; }  // ranks of each host, in rank order
  uint64_t token() const { return token_; }                              // of the job

  /// A connection to the rank; -1: none.
  int connect(int rank, double seconds) const;
  /// The answer of a rank's server thread; nullopt if it is absent or incomplete.
  std::optional<std::string> ask(int rank, wire::Request request, double seconds) const;
  /// The views of these ranks of one host, from any of them that answers; of none when the host does not answer, whose
  /// ranks are asked twice each, for at most kHostSeconds.
  std::vector<RankView> query(const std::vector<int>& ranks_of_host) const;
  /// The views of all ranks. Host `lost`, which has just not answered, is not asked.
  std::vector<RankView> views(std::optional<size_t> lost) const;
  /// The records of this host's ranks as text: the answer to kQuery.
  std::string views_of_this_host() const;
  /// The stack of the rank's training thread; empty for a process that is stopped, dead or out of reach.
  std::string stack_of(const RankView& view) const;
  /// Sends SIGCONT to the stopped ranks of this host and returns them.
  std::vector<const Peer*> continue_stopped() const;

 private:
  int rank_, size_;
  const std::atomic<bool>& stop_;
  uint64_t token_ = 0;
  std::vector<Peer> peers_;
  std::vector<std::vector<int>> hosts_;
};

}  // namespace trireme
