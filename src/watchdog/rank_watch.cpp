#include "rank_watch.h"

#include "progress_ring.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/process.h"
#include "trireme/base/stack.h"
#include "trireme/base/text.h"
#include "trireme/base/time.h"
#include "wire.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace trireme {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using namespace wire;

constexpr double kConnectSeconds = 5;

}  // namespace

RankWatch::RankWatch(int rank, int size, const AllGather& all_gather, Hooks hooks)
    : rank_(rank), size_(size), hooks_(std::move(hooks)) {
  if (std::getenv("TRIREME_HANG_SECONDS") != nullptr) fixed_limit_ = positive_seconds("TRIREME_HANG_SECONDS", 0);
  ProgressRing::instance().set_rank(rank);
  ProgressRing::instance().beat();
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  listen();
  read_introductions(all_gather(introduction()));
  queue_ = std::make_unique<GreetingQueue>(listener_, GreetingQueue::Limits{.bytes = sizeof(Greeting), .most = 64},
                                           [this](const char* greeting) {
                                             Greeting read{};
                                             std::memcpy(&read, greeting, sizeof read);
                                             return read.token == token_;
                                           });
  server_ = std::thread([this] { serve(); });
  const Peer& next = peers_[static_cast<size_t>((rank_ + 1) % size_)];
  if (!connect_next())
    log_warn(fmt::format("rank {} cannot reach rank {} on {} (port {} of {}): a dead rank will be noticed late", rank_,
                         (rank_ + 1) % size_, next.host, next.port, join(next.addresses, ", ")));
  (void)eventfd_write(wake_, 1);
  watchdog_ = std::thread([this] { watch(); });
}

RankWatch::~RankWatch() {
  stop_ = true;
  (void)eventfd_write(wake_, 1);
  if (server_.joinable()) server_.join();
  if (watchdog_.joinable()) watchdog_.join();
  for (const Neighbour& neighbour : neighbours_)
    if (neighbour.fd >= 0) close(neighbour.fd);
  if (listener_ >= 0) close(listener_);
  if (wake_ >= 0) close(wake_);
}

// --- start ---------------------------------------------------------------------------------------

void RankWatch::listen() {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  if (listener_ < 0 || bind(listener_, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 ||
      ::listen(listener_, 256) != 0)
    throw ConfigError(
        fmt::format("rank {} on {} cannot listen on any port: {}", rank_, host_name(), std::strerror(errno)));
}

std::string RankWatch::introduction() {
  sockaddr_in bound{};
  socklen_t length = sizeof bound;
  (void)getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &length);
  ProgressRing& ring = ProgressRing::instance();
  std::string text = fmt::format("{} {} {} {} {}", host_name(), getpid(), ring.record_fd(), ring.record_token(),
                                 ntohs(bound.sin_port));
  for (const std::string& address : own_addresses()) text += " " + address;
  return text;
}

void RankWatch::read_introductions(const std::vector<std::string>& introductions) {
  const std::string own_host = host_name();
  for (int rank = 0; rank < size_; ++rank) {
    Peer peer;
    int fd = -1;
    uint64_t token = 0;
    std::istringstream in(introductions[static_cast<size_t>(rank)]);
    in >> peer.host >> peer.pid >> fd >> token >> peer.port;
    TRIREME_CHECK(static_cast<bool>(in), "rank ", rank, " introduced itself as '",
                  introductions[static_cast<size_t>(rank)], "'");
    if (rank == 0) token_ = token;
    if (peer.host == own_host) peer.addresses.push_back("127.0.0.1");
    for (std::string address; in >> address;) peer.addresses.push_back(address);
    if (peer.host == own_host) peer.record = map_record(peer.pid, fd, token);
    peers_.push_back(std::move(peer));
  }
}

int RankWatch::connect_to(int rank, double seconds) const {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  for (const std::string& address : peer.addresses) {
    const int fd = connect_address(address, peer.port, seconds);
    if (fd >= 0) return fd;
  }
  return -1;
}

/// The next rank accepts the connection in its server's thread and echoes the request.
bool RankWatch::connect_next() {
  const int next = (rank_ + 1) % size_;
  const int fd = connect_to(next, kConnectSeconds);
  if (fd < 0) return false;
  const Greeting greeting{token_, rank_, kNeighbour};
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
    (void)poll(polled, 4, timeout);
    if (stop_) return;
    if ((polled[0].revents & POLLIN) != 0) {
      eventfd_t value = 0;
      (void)eventfd_read(wake_, &value);
    }
    for (const GreetingQueue::Caller& caller : queue_->serve()) answer(caller);
    if (strangers_ == 0 && queue_->dropped() > 0) log_warn(fmt::format("rank {}: {}", rank_, queue_->report()));
    strangers_ = queue_->dropped();
    if (polled[2].revents != 0 && polled[2].fd == neighbours_[kNext].fd) read_from(neighbours_[kNext]);
    if (polled[3].revents != 0 && polled[3].fd == neighbours_[kPrevious].fd) read_from(neighbours_[kPrevious]);
    if (previous_lost_ && Clock::now() >= *previous_lost_ + kReportDelay) handle_lost(neighbours_[kPrevious]);
  }
}

void RankWatch::answer(const GreetingQueue::Caller& caller) {
  const int fd = caller.fd;
  make_blocking(fd);
  set_timeouts(fd, 1);
  Greeting greeting{};
  std::memcpy(&greeting, caller.greeting.data(), sizeof greeting);
  if (greeting.request == kNeighbour && greeting.rank == (rank_ + size_ - 1) % size_) {
    const char answer = kNeighbour;
    if (send_all(fd, &answer, 1)) {
      keep_alive(fd);
      const std::lock_guard lock(neighbours_mutex_);
      neighbours_[kPrevious].fd = fd;
      neighbours_[kPrevious].rank = greeting.rank;
      return;
    }
  } else if (greeting.request == kQuery) {
    std::string text;
    const double now = steady_seconds();
    for (const Peer& peer : peers_) {
      if (peer.record == nullptr) continue;
      RankView view = view_of(*peer.record, now);
      view.host = peer.host;
      text += encode(view) + "\n";
    }
    (void)send_all(fd, text.data(), text.size());
  } else if (greeting.request == kStack) {
    const std::string text = training_stack(kStackSeconds);
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
    if (neighbour.received == std::string(1, kBye) || stop_) return;
    // Both neighbours of a dead rank see the connection break. The rank before it reports; the other waits kReportDelay
    // for that report.
    if (&neighbour == &neighbours_[kPrevious] && size_ > 2)
      previous_lost_ = Clock::now();
    else
      previous_lost_.reset();
  } else {
    neighbour.received.append(buffer, static_cast<size_t>(got));
    if (neighbour.received.size() >= 5 && neighbour.received[0] == kFailure) {
      uint32_t length = 0;
      std::memcpy(&length, neighbour.received.data() + 1, sizeof length);
      if (neighbour.received.size() < 5 + std::min<size_t>(length, kMaxReason)) return;
      const std::string message = neighbour.received.substr(5, length);
      const int code = std::atoi(message.c_str());
      const std::string reason = message.substr(message.find('\n') + 1);
      claim_exit();
      if (rank_ == 0) print_failure(rank_, "ending because " + reason);
      forward(reason, code);
      end_stopped_ranks();
      _exit(code);
    }
    return;
  }
  if (!previous_lost_) handle_lost(neighbour);
}

void RankWatch::handle_lost(const Neighbour& neighbour) {
  claim_exit();
  const Peer& peer = peers_[static_cast<size_t>(neighbour.rank)];
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

}  // namespace trireme
