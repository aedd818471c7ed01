#include "rank_watch.h"

#include "hang_report.h"
#include "progress_ring.h"
#include "trireme/base/bytes.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/stack.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "trireme/comm/sockets.h"
#include "trireme/watchdog/watchdog.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <utility>

namespace trireme {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using namespace wire;

constexpr double kConnectSeconds = 5;
constexpr int kBeat = 1000;  // milliseconds
constexpr double kFirstStepLimit = 300, kLeastLimit = 60, kMedianSteps = 10;
/// A rank whose watchdog has found it waiting this long ago still looks for the hanging one.
constexpr double kAsking = 5;
/// From the limit until a rank asks: by then the other ranks also know that they wait, and few ask.
constexpr double kSettle = 1.5;
/// A continued process reads the failure from its neighbour and ends; on a busy machine it may have to wait for a core.
constexpr milliseconds kContinuedEnds{5000};
/// The reporting rank has printed by then; watchdogs look once a second, not at the same time.
constexpr double kReporterFirst = 1.5;

}  // namespace

RankWatch::RankWatch(int rank, int size, const AllGather& all_gather, Hooks hooks)
    : rank_(rank), size_(size), hooks_(std::move(hooks)) {
  if (std::getenv("TRIREME_HANG_SECONDS") != nullptr) fixed_limit_ = positive_seconds("TRIREME_HANG_SECONDS", 0);
  ProgressRing::instance().set_rank(rank);
  ProgressRing::instance().beat();
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const std::vector<std::string> places = all_gather(network_place(hooks_.address));
  const std::vector<Endpoint> endpoints = listen(places);
  peers_ = std::make_unique<RankPeers>(rank, all_gather(RankPeers::introduction(endpoints)), places, stop_);
  queue_ = std::make_unique<GreetingQueue>(
      listeners_, GreetingQueue::Limits{.bytes = sizeof(Greeting), .most = 64},
      [this](const char* greeting) { return value_at<Greeting>(greeting).token == peers_->token(); });
  server_ = std::thread([this] { serve(); });
  const RankPeers::Peer& next = (*peers_)[(rank_ + 1) % size_];
  if (!connect_next()) {
    std::vector<std::string> tried;
    for (const Endpoint& endpoint : next.endpoints)
      tried.push_back(fmt::format("port {} of {}", endpoint.port, endpoint.address));
    log_warn(
        fmt::format("rank {} cannot reach rank {} on {} ({}): a dead rank will be noticed late; if the hosts have "
                    "several networks, TRIREME_LISTEN names the interface of this job",
                    rank_, (rank_ + 1) % size_, next.host,
                    tried.empty() ? "it listens at its loopback address alone" : join(tried, ", ")));
  }
  (void)eventfd_write(wake_, 1);
  watchdog_ = std::thread([this] { watch(); });
}

RankWatch::~RankWatch() {
  end_threads();
  for (const Neighbour& neighbour : neighbours_)
    if (neighbour.fd >= 0) close(neighbour.fd);
  for (const int listener : listeners_) close(listener);
  if (wake_ >= 0) close(wake_);
}

// --- start ---------------------------------------------------------------------------------------

std::vector<Endpoint> RankWatch::listen(const std::vector<std::string>& places) {
  const auto words_of = [](const std::string& text) { return split(text, ' '); };
  const std::vector<std::string> own = words_of(places[static_cast<size_t>(rank_)]);
  std::vector<std::string> addresses = {"127.0.0.1"};
  if (const auto chosen = listen_override()) {
    if (*chosen != addresses[0]) addresses.push_back(*chosen);
  } else {
    const auto elsewhere = std::find_if(places.begin(), places.end(),
                                        [&](const std::string& text) { return words_of(text)[0] != own[0]; });
    if (elsewhere != places.end() && !hooks_.address.empty() && !is_loopback_address(hooks_.address)) {
      addresses.push_back(hooks_.address);
    } else if (elsewhere != places.end()) {
      // The address from which this host reaches another one of the job. Both may have an equal address of a network
      // that does not connect them (a bridge of containers): it is none of theirs.
      for (const std::string& theirs : words_of(*elsewhere)) {
        const std::string towards =
            std::find(own.begin(), own.end(), theirs) == own.end() ? address_towards(theirs) : "";
        if (towards.empty() || is_loopback_address(towards)) continue;
        addresses.push_back(towards);
        break;
      }
    }
  }
  std::vector<Endpoint> endpoints;
  for (const std::string& address : addresses) {
    try {
      const Listener listener = listen_at(address, 0, 256);
      listeners_.push_back(listener.fd);
      endpoints.push_back({address, listener.port});
    } catch (const std::runtime_error& error) {
      throw ConfigError(fmt::format("rank {} on {} cannot listen on any port of {}: {}", rank_, host_name(),
                                    address.empty() ? "its addresses" : address, error.what()));
    }
  }
  return endpoints;
}

/// The next rank accepts the connection in its server's thread and echoes the request.
bool RankWatch::connect_next() {
  const int next = (rank_ + 1) % size_;
  const int fd = peers_->connect(next, kConnectSeconds);
  if (fd < 0) return false;
  const Greeting greeting{peers_->token(), rank_, kNeighbour};
  char answer = 0;
  if (!send_all(fd, &greeting, sizeof greeting) || !receive_all(fd, &answer, 1) || answer != kNeighbour) {
    close(fd);
    return false;
  }
  keep_alive(fd);
  const std::lock_guard lock(neighbours_mutex_);
  neighbours_[kNext].fd = fd;
  neighbours_[kNext].rank = next;
  return true;
}

// --- the server's thread -------------------------------------------------------------------------

void RankWatch::serve() {
  while (!stop_) {
    pollfd polled[4] = {{wake_, POLLIN, 0}, {queue_->fd(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
    {
      const std::lock_guard lock(neighbours_mutex_);
      polled[2].fd = neighbours_[kNext].fd;
      polled[3].fd = neighbours_[kPrevious].fd;
    }
    int timeout = queue_->timeout();
    if (previous_lost_) {
      const auto left = std::chrono::ceil<milliseconds>(*previous_lost_ + kReportDelay - Clock::now()).count();
      const int until_report = static_cast<int>(std::max<int64_t>(0, left));
      timeout = timeout < 0 ? until_report : std::min(timeout, until_report);
    }
    (void)poll(polled, 4, timeout < 0 ? kBeat : std::min(timeout, kBeat));
    if (stop_) return;
    ProgressRing::instance().beat();
    if ((polled[0].revents & POLLIN) != 0) {
      eventfd_t value = 0;
      (void)eventfd_read(wake_, &value);
    }
    for (const GreetingQueue::Caller& caller : queue_->serve()) answer(caller);
    if (unknown_callers_ == 0 && queue_->dropped() > 0) log_warn(fmt::format("rank {}: {}", rank_, queue_->report()));
    unknown_callers_ = queue_->dropped();
    if (polled[2].revents != 0 && polled[2].fd == neighbours_[kNext].fd) read_from(neighbours_[kNext]);
    if (polled[3].revents != 0 && polled[3].fd == neighbours_[kPrevious].fd) read_from(neighbours_[kPrevious]);
    if (previous_lost_ && Clock::now() >= *previous_lost_ + kReportDelay) handle_lost(neighbours_[kPrevious]);
  }
}

void RankWatch::answer(const GreetingQueue::Caller& caller) {
  const int fd = caller.fd;
  make_blocking(fd);
  set_timeouts(fd, 1);
  const auto greeting = value_at<Greeting>(caller.greeting.data());
  if (greeting.request == kNeighbour && greeting.rank == (rank_ + size_ - 1) % size_ &&
      neighbours_[kPrevious].rank < 0) {
    const char answer = kNeighbour;
    if (send_all(fd, &answer, 1)) {
      keep_alive(fd);
      const std::lock_guard lock(neighbours_mutex_);
      neighbours_[kPrevious].fd = fd;
      neighbours_[kPrevious].rank = greeting.rank;
      return;
    }
  } else if (greeting.request == kQuery) {
    const std::string text = peers_->views_of_this_host();
    (void)send_all(fd, text.data(), text.size());
  } else if (greeting.request == kStack) {
    const std::string text = training_stack(RankPeers::kStackSeconds);
    (void)send_all(fd, text.data(), text.size());
  }
  close(fd);
}

void RankWatch::read_from(Neighbour& neighbour) {
  char buffer[4096];
  const ssize_t got = recv(neighbour.fd, buffer, sizeof buffer, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    const std::lock_guard lock(neighbours_mutex_);
    close(neighbour.fd);
    neighbour.fd = -1;
    if (read_message(neighbour.received).what == Received::kOrderlyEnd || stop_) return;
    // Both neighbours of a dead rank see the connection break. The rank before it reports; the other waits kReportDelay
    // for that report.
    if (&neighbour == &neighbours_[kPrevious] && size_ > 2)
      previous_lost_ = Clock::now();
    else
      previous_lost_.reset();
  } else {
    neighbour.received.append(buffer, static_cast<size_t>(got));
    const Received message = read_message(neighbour.received);
    if (message.what == Received::kFailed) {
      claim_exit();
      if (rank_ == 0) print_failure(rank_, "ending because " + message.reason);
      forward(message.reason, message.exit_code);
      end_stopped_ranks();
      _exit(message.exit_code);
    }
    // Damaged bytes: the end of this connection tells what follows.
    if (message.what == Received::kJunk) neighbour.received.resize(1);
    return;
  }
  if (!previous_lost_) handle_lost(neighbour);
}

void RankWatch::handle_lost(const Neighbour& neighbour) {
  claim_exit();
  const RankPeers::Peer& peer = (*peers_)[neighbour.rank];
  std::string text;
  if (peer.record != nullptr) {
    RankView view = view_of(*peer.record, steady_seconds());
    const auto* at = view.position();
    text = fmt::format("rank {} on {} (process {}) died in step {}", neighbour.rank, peer.host, peer.pid, view.step);
    if (!view.section.empty()) text += ", section " + view.section;
    if (at != nullptr) text += fmt::format(", {} {}", at->ended_ago >= 0 ? "after" : "inside", at->name());
  } else {
    text = fmt::format("rank {} on {} is gone, its connection broke while this rank was in step {}", neighbour.rank,
                       peer.host, ProgressRing::instance().view().step);
  }
  text += "; read its own last message and the kernel's log (out-of-memory killer), then run again";
  print_failure(rank_, text);
  forward(text, static_cast<int>(ExitCode::kHang));
  end_stopped_ranks();
  _exit(static_cast<int>(ExitCode::kHang));
}

// --- the watchdog's thread -----------------------------------------------------------------------

double RankWatch::limit() const {
  if (fixed_limit_) return *fixed_limit_;
  const double median = ProgressRing::instance().view().step_seconds;
  return median > 0 ? std::max(kLeastLimit, kMedianSteps * median) : kFirstStepLimit;
}

double RankWatch::longest_wait() const {
  return std::max(ProgressRing::instance().longest_wait(), hooks_.device_wait ? hooks_.device_wait() : 0.0);
}

void RankWatch::watch() {
  for (int round = 1; !stop_; ++round) {
    std::this_thread::sleep_for(milliseconds(100));
    if (round % 10 != 0 || stop_) continue;
    if (hooks_.device_error) {
      if (const std::string error = hooks_.device_error(); !error.empty())
        fail(error, static_cast<int>(ExitCode::kHang));
    }
    const double waited = longest_wait(), now = steady_seconds();
    ProgressRing::instance().set_overdue(waited >= limit());
    if (waited < limit() + kSettle || now < next_check_) continue;
    const double next = handle_hang(waited);
    next_check_ = steady_seconds() + next;
  }
}

bool RankWatch::pause(double seconds) const {
  for (const double end = steady_seconds() + seconds; !stop_ && steady_seconds() < end;) {
    ProgressRing::instance().set_overdue(true);
    std::this_thread::sleep_for(milliseconds(100));
  }
  return !stop_;
}

bool RankWatch::another_asks(std::optional<size_t>& lost) const {
  const size_t host = (*peers_)[rank_].group;
  for (const int rank : peers_->hosts()[host]) {
    const RankRecord* record = (*peers_)[rank].record;
    if (rank < rank_ && record != nullptr && record->overdue > steady_seconds() - kAsking) return true;
  }
  // There is always a rank that asks all hosts: the first, or one after a host where no rank waits.
  if (host == 0) return false;
  const std::vector<RankView> before = peers_->query(peers_->hosts()[host - 1]);
  if (before.empty()) lost = host - 1;
  for (const RankView& view : before)
    if (view.overdue_ago >= 0 && view.overdue_ago < kAsking && !view.stopped && !view.dead) return true;
  return false;
}

double RankWatch::handle_hang(double waited) {
  // If ranks die inside MPI_Finalize, OpenMPI's mpirun can wait at a PMIx fence forever. All files are written by then,
  // so stopped ranks are continued once instead of killed, on every host by a rank of it.
  const RankView own = ProgressRing::instance().view();
  const bool finalizing = !continued_ && own.position() != nullptr && own.position()->kind == kMpiFinalize;
  std::optional<size_t> lost;
  if (another_asks(lost)) {
    if (!finalizing) return 1;
    continued_ = true;
    (void)pause(kReporterFirst);
    (void)peers_->continue_stopped();
    return limit();
  }
  const auto all = peers_->views(lost);
  const HangReport report = analyse(all);
  if (report.excused) {
    if (!excuse_logged_)
      log_warn(fmt::format("waiting for {:.0f} s: {}; it is given more time", waited, report.sentence));
    excuse_logged_ = true;
    return std::max(1.0, limit() / 10);
  }
  // The lowest waiting rank that is not stopped reports for all. The others that ask wait for it, and report themselves
  // if it does not.
  int first = rank_;
  for (const RankView& view : all)
    if (view.answered && !view.stopped && !view.dead && view.overdue_ago >= 0 && view.overdue_ago < kAsking)
      first = std::min(first, view.rank);
  if (finalizing) {
    continued_ = true;
    if (first == rank_)
      log_warn(fmt::format("no progress for {:.0f} s in MPI_Finalize: {}; the stopped ranks are continued", waited,
                           report.sentence));
    else
      (void)pause(kReporterFirst);
    (void)peers_->continue_stopped();
    return limit();
  }
  if (!pause(first < rank_ ? 4 : 0)) return 0;
  const std::string stack =
      peers_->stack_of(all[static_cast<size_t>(report.responsible.empty() ? rank_ : report.responsible[0])]);
  // The questions have taken seconds, and the ranks may have gone on meanwhile.
  if (longest_wait() < waited) return 1;
  claim_exit();
  const std::string sentence = fmt::format(
      "no progress for {:.0f} s in step {}: {}; run again, or give slow machines a longer TRIREME_HANG_SECONDS (now "
      "{:g})",
      waited, own.step, report.sentence, limit());
  print_failure(rank_, fmt::format("no progress for {:.0f} s; positions of the ranks:\n{}{}rank {} on {}: {}", waited,
                                   report.positions, stack, rank_, host_name(), sentence));
  forward(fmt::format("rank {} found {}", rank_, sentence), static_cast<int>(ExitCode::kHang));
  end_stopped_ranks();
  _exit(static_cast<int>(ExitCode::kHang));
}

// --- the end -------------------------------------------------------------------------------------

void RankWatch::claim_exit() {
  if (!exiting_.exchange(true)) return;
  for (;;) ::pause();
}

void RankWatch::forward(const std::string& reason, int exit_code) {
  std::string body = fmt::format("{}\n{}", exit_code, reason).substr(0, kMaxReason);
  std::string message(1, kFailure);
  const auto length = static_cast<uint32_t>(body.size());
  message.append(reinterpret_cast<const char*>(&length), sizeof length);
  message += body;
  const std::lock_guard lock(neighbours_mutex_);
  for (const Neighbour& neighbour : neighbours_)
    if (neighbour.fd >= 0) (void)send_all(neighbour.fd, message.data(), message.size());
}

/// A stopped process reads nothing. The ranks of its host continue it, it reads the failure from its neighbours and
/// ends with the same exit code. A process that does not end in time is killed.
void RankWatch::end_stopped_ranks() {
  std::vector<const RankPeers::Peer*> continued = peers_->continue_stopped();
  for (auto until = Clock::now() + kContinuedEnds; !continued.empty() && Clock::now() < until;) {
    std::erase_if(continued, [](const RankPeers::Peer* peer) { return view_of(*peer->record, steady_seconds()).dead; });
    std::this_thread::sleep_for(milliseconds(20));
  }
  for (const RankPeers::Peer* peer : continued) (void)kill(peer->pid, SIGKILL);
}

void RankWatch::announce(const std::string& reason, int exit_code) {
  std::this_thread::sleep_for(kReportDelay);
  claim_exit();
  print_failure(rank_, reason);
  forward(fmt::format("rank {} on {}: {}", rank_, host_name(), reason), exit_code);
  end_stopped_ranks();
}

void RankWatch::fail(const std::string& reason, int exit_code) {
  announce(reason, exit_code);
  _exit(exit_code);
}

void RankWatch::end_threads() {
  stop_ = true;
  (void)eventfd_write(wake_, 1);
  if (server_.joinable()) server_.join();
  if (watchdog_.joinable()) watchdog_.join();
}

void RankWatch::leave() {
  end_threads();
  if (unknown_callers_ > 0) log_warn(fmt::format("rank {}: {}", rank_, queue_->report()));
  const char bye = kBye;
  for (const Neighbour& neighbour : neighbours_)
    if (neighbour.fd >= 0) (void)send_all(neighbour.fd, &bye, 1);
}

namespace {

class TcpWatchdog final : public Watchdog {
 public:
  CollectiveObserver& observer() override { return ProgressRing::instance(); }
  std::unique_ptr<RankGuard> guard(int rank, int size, const AllGather& all_gather, Hooks hooks) override {
    return std::make_unique<RankWatch>(rank, size, all_gather, std::move(hooks));
  }
};

}  // namespace

Watchdog& rank_watchdog() {
  static TcpWatchdog watchdog;
  return watchdog;
}

}  // namespace trireme
