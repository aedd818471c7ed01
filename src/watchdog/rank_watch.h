#pragma once
// Private to watchdog/: every rank watches the others, whatever launched them: a dead rank is noticed at once, a hung
// one after its time, and when one goes down it takes all with it.
//
//   position   each rank keeps its ring of collectives in shared memory that the ranks of its host read, stopped or
//   not, and answers
//              for all ranks of its host when another host asks
//   lifeline   a TCP connection to the next rank (a ring over all ranks): it breaks when the process dies; the reason
//   of a failure runs
//              along it in both directions
//   watchdog   a collective that does not finish in time: the positions of all ranks say who is to blame, its stack
//   what it does instead

#include "rank_record.h"
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

  /// False when the next rank could not be reached: a dead rank is then noticed by the launcher or by the watchdog
  /// only.
  bool connected() const override { return lines_[kNext].fd >= 0; }

  /// Says why, takes the other ranks down and ends this process. Gives way to the report of a dead rank when the
  /// failure follows from one.
  [[noreturn]] void fail(const std::string& reason, int exit_code) override;
  void tell(const std::string& reason, int exit_code) override;
  void leave() override;
  /// Where all ranks stand now.
  std::vector<RankView> views();

 private:
  struct Peer {
    std::string host;
    int pid = 0, port = 0;
    std::vector<std::string> addresses;
    const RankRecord* record = nullptr;  // same host
  };
  struct Line {
    int fd = -1, rank = -1;
    std::string received;
  };
  enum { kNext, kPrevious };
  /// A failure here may be the consequence of a death elsewhere, whose news is on its way.
  static constexpr std::chrono::milliseconds kNewsTravels{300};
  static constexpr double kStackSeconds = 1;

  void listen();
  std::string introduction();
  void meet(const std::vector<std::string>& introductions);
  int connect_to(int rank, double seconds) const;
  void serve();
  void accept_one();
  void read_line(Line& line);
  void lost(const Line& line);
  void watch();
  /// Ends all ranks, or says for how many seconds they are given time.
  double hung(double waited);
  double limit() const;
  std::string query(const std::vector<int>& ranks_of_host) const;
  /// What the server's thread of that rank answers; nothing when it does not, or breaks off.
  std::optional<std::string> ask(int rank, char request) const;
  std::string stack_of(const RankView& view) const;
  void claim_end();
  void pass_on(const std::string& reason, int exit_code);
  void end_stopped();
  /// Of this host.
  std::vector<const Peer*> continue_stopped() const;

  int rank_, size_;
  Hooks hooks_;
  std::optional<double> fixed_limit_;
  uint64_t token_ = 0;
  int listener_ = -1, wake_ = -1;
  std::vector<Peer> peers_;
  std::mutex lines_mutex_;
  Line lines_[2];
  std::optional<std::chrono::steady_clock::time_point> previous_lost_;
  std::atomic<bool> stop_ = false, ending_ = false;
  double next_check_ = 0;
  bool excused_said_ = false, resumed_ = false;
  std::thread server_, watchdog_;
};

}  // namespace trireme
